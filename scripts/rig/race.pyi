from edge_runtime._realtime import ActionRing as ActionRing
from edge_runtime._realtime import LinearBlend as LinearBlend
from edge_runtime._realtime import TemporalEnsemble as TemporalEnsemble

def race(ring: ActionRing, rows: int, exact: bool = True) -> tuple[int, int, int]: ...
