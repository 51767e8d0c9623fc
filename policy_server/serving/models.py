"""The models on offer, and how they come, change and go while the server runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress

from edge_runtime.errors import UsageError
from policy_server.engines import Source
from policy_server.engines.sources import find
from policy_server.serving.model import Model

log = logging.getLogger(__name__)

PROGRESS_S = 10.0
Say = Callable[[str], None]


class Models:
    """By name; the first is the default. `failed` holds what ended an engine that was not meant to end.

    `code` are the policies written in Python that may be loaded: those of the server's own command line.

    Readers take no lock: each change puts another dictionary in the place of the last.
    """

    def __init__(self, open_model: Callable[[Source], Model], code: Collection[str] = ()) -> None:
        self.failed: Future[None] = Future()
        self._open_model = open_model
        self._code = code
        self._models: dict[str, Model] = {}
        self._changing = threading.Lock()  # one change at a time, however long it takes

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    @property
    def names(self) -> str:
        return ", ".join(self._models)

    def get(self, name: str) -> Model | None:
        """The model of that name, the default for an empty one."""
        models = self._models
        return models.get(name or next(iter(models)))

    def add(self, source: Source) -> Model:
        """Offer a bundle that is yet to be loaded. Raises UsageError for a second one of its name."""
        self._refuse_second(source)
        model = self._open_model(source)
        model.scheduler.over.add_done_callback(self._note_end)
        self._models = {**self._models, model.name: model}
        return model

    def load(self, name: str, say: Say) -> Model:
        """Check, load and warm up the bundle that `name` means, then offer it.

        Raises UsageError (no such bundle, a second one of its name), ModelError, ConfigError.
        """
        with self._changing:
            source = find(name, self._code, again=True)
            self._refuse_second(source)
            model = self._open_model(source)
            model.scheduler.start()
            provider = self._await(model, model.scheduler.warm, say)
            model.scheduler.over.add_done_callback(self._note_end)
            self._models = {**self._models, model.name: model}
            log.info("%s loaded, runs on %s; now [%s]", model.name, provider, self.names)
            return model

    def replace(self, name: str, say: Say) -> Model:
        """Put the bundle that `name` means in the place of the model of its name, once it is checked and warm.

        Raises UsageError (no such model), ModelError, ConfigError; then nothing has changed.
        """
        with self._changing:
            source = find(name, self._code, again=True)
            model = self._named(source.policy.name)
            provider = self._await(model, model.replace(source), say)
            log.info("%s runs on %s", model.name, provider)
            return model

    def unload(self, name: str, *, force: bool) -> None:
        """Withdraw a model. Raises UsageError for one in use unless `force`, and for the last."""
        with self._changing:
            model = self._named(name)
            if model.sessions and not force:
                raise UsageError(f"model: {name} is in use (sessions: {model.sessions}); --force=true ends them")
            if len(self._models) == 1:
                raise UsageError(f"model: {name} is the last one; a server without any cannot be")
            self._models = {other: each for other, each in self._models.items() if other != name}
            model.unload()
            log.info("%s unloaded; now [%s]", name, self.names)

    def stop(self) -> None:
        for model in self:
            model.scheduler.stop()

    def _refuse_second(self, source: Source) -> None:
        if source.policy.name in self._models:
            raise UsageError(f"bundle: {source.path} is named {source.policy.name!r}, as is another bundle")

    def _named(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            raise UsageError(f"model: {name} is not offered; offered: [{self.names}]")
        return model

    def _await(self, model: Model, warm: Future[str], say: Say) -> str:
        since_s = time.monotonic()
        while not wait([warm], PROGRESS_S).done:
            say(f"{model.name}: warming up for {time.monotonic() - since_s:.0f} s ({model.scheduler.progress})")
        return warm.result()

    def _note_end(self, over: Future[None]) -> None:
        error = over.exception()
        if error is not None:
            with suppress(InvalidStateError):
                self.failed.set_exception(error)
