"""Files of tokens, keys and certificates: who may read them, what must be in them, and the tool that writes some."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_runtime.errors import AccessError, ConfigError, OutputError, UsageError
from edge_runtime.program import credentials
from policy_server import cli
from policy_server import config as server_config
from policy_server.door import certificates
from policy_server.door.tls import ServerTls

Tokens = Callable[..., Path]
GOOD = "0123456789abcdef"


def test_tokens_are_read_one_a_line(token_file: Tokens) -> None:
    assert credentials.tokens(token_file(GOOD, "", " a.token-of~the/lab+1== "), "token_file") == (
        GOOD,
        "a.token-of~the/lab+1==",
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o660, 0o666])
def test_a_token_that_others_may_read_or_write_is_refused(token_file: Tokens, mode: int) -> None:
    path = token_file(GOOD, mode=mode)
    with pytest.raises(AccessError, match=f"token_file: {path} is user .* with mode 0{mode:o}.*chmod 600") as error:
        credentials.tokens(path, "token_file")
    assert error.value.exit_code == 77
    assert GOOD not in str(error.value)


@pytest.mark.parametrize("token", ["short", "with spaces in the middle", "ümlaut-ümlaut-ümlaut", "x" * 513])
def test_what_is_no_token_is_refused_and_not_repeated(token_file: Tokens, token: str) -> None:
    path = token_file(GOOD, token)
    with pytest.raises(ConfigError, match="does not hold tokens of 16 to 512") as error:
        credentials.tokens(path, "token_file")
    assert token not in str(error.value)


def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path, token_file: Tokens) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    large = tmp_path / "large"
    large.touch(0o600)
    os.truncate(large, 2 << 20)
    with pytest.raises(ConfigError, match=r"cannot read .*: not a regular file"):
        credentials.tokens(fifo, "token_file")
    with pytest.raises(ConfigError, match="is not a file of at most"):
        credentials.tokens(large, "token_file")
    with pytest.raises(ConfigError, match=r"cannot read .*: no such file"):
        credentials.tokens(tmp_path / "missing", "token_file")
    with pytest.raises(ConfigError, match=r"tls\.ca: .* holds no certificate in PEM"):
        credentials.authorities(token_file(GOOD), "tls.ca")


@pytest.mark.parametrize(("mode", "allowed"), [(0o600, True), (0o640, True), (0o644, False), (0o602, False)])
def test_a_key_is_not_for_the_world(certs: Path, tmp_path: Path, mode: int, allowed: bool) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes((certs / "server.key").read_bytes())
    key.chmod(mode)
    if allowed:
        assert b"PRIVATE KEY" in credentials.pair(certs / "server.crt", key)[1]
    else:
        with pytest.raises(AccessError, match=f"mode 0{mode:o}"):
            credentials.pair(certs / "server.crt", key)


def test_expiry_is_read_from_the_certificate(certs: Path) -> None:
    ends = credentials.expires((certs / "robot.crt").read_bytes())
    tomorrow = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    assert abs(ends - tomorrow) < datetime.timedelta(minutes=5)
    far = certificates.make(["h"], datetime.timedelta(days=36500))["robot"]  # beyond 2049 it is written another way
    pem = far.certificate.public_bytes(certificates.serialization.Encoding.PEM)
    assert credentials.expires(pem) == far.certificate.not_valid_after_utc


# A server's files, before it listens.


def test_a_key_of_another_certificate_is_refused(certs: Path, strangers: Path) -> None:
    config = server_config.TlsConfig(cert=certs / "server.crt", key=strangers / "server.key")
    with pytest.raises(ConfigError, match=r"tls\.key: .*server\.key is not the unencrypted key of .*server\.crt"):
        ServerTls(config)


def test_a_certificate_for_no_host_is_refused(certs: Path) -> None:
    config = server_config.TlsConfig(cert=certs / "robot.crt", key=certs / "robot.key")
    with pytest.raises(ConfigError, match=r"tls\.cert: names no host"):
        ServerTls(config)


def test_a_damaged_ca_is_refused(certs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "ca.crt"
    damaged.write_bytes((certs / "ca.crt").read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")
    config = server_config.TlsConfig(certs / "server.crt", certs / "server.key", damaged)
    with pytest.raises(ConfigError, match=r"tls\.client_ca: .* holds a damaged certificate"):
        ServerTls(config)


# policy-server make-certs.


def test_make_certs_says_in_three_lines_what_goes_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "certs"
    assert cli.dispatch(["make-certs", str(folder), "--hosts=[gpu-box, 192.0.2.7]"]) == 0
    server, robot, nobody = capsys.readouterr().out.splitlines()
    assert server.startswith("the policy server (gpu-box, 192.0.2.7, ")
    assert all(f"{folder}/{name}" in server for name in ("server.crt", "server.key", "ca.crt"))
    assert all(f"{folder}/{name}" in robot for name in ("ca.crt", "robot.crt", "robot.key"))
    assert f"{folder}/ca.key" in nobody
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.suffix == ".key" else 0o644)


def test_make_certs_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "robot.key").write_text("precious")
    with pytest.raises(OutputError, match=r"robot\.key is there already and is not overwritten") as error:
        cli.dispatch(["make-certs", str(tmp_path)])
    assert error.value.exit_code == 73
    assert [path.name for path in tmp_path.iterdir()] == ["robot.key"]
    assert (tmp_path / "robot.key").read_text() == "precious"


def test_make_certs_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dir is missing"):
        cli.dispatch(["make-certs"])
    with pytest.raises(ConfigError, match="days: 0 is not in"):
        cli.dispatch(["make-certs", str(tmp_path), "--days=0"])
    with pytest.raises(ConfigError, match="hosts: 'two words' is neither"):
        cli.dispatch(["make-certs", str(tmp_path), "--hosts=[two words]"])


def test_the_certificates_hold_in_the_strictest_reading(certs: Path) -> None:
    """As Python 3.13 checks them: key identifiers, key usage, and each for its own purpose only."""
    for purpose, name in ((ssl.Purpose.SERVER_AUTH, "server"), (ssl.Purpose.CLIENT_AUTH, "robot")):
        for shown in ("server", "robot"):
            assert handshake(certs, purpose, shown) is (shown == name)


def handshake(folder: Path, purpose: ssl.Purpose, shown: str) -> bool:
    """Whether who verifies for `purpose` takes the certificate that is shown, in memory."""
    judge = ssl.create_default_context(purpose, cafile=folder / "ca.crt")
    judge.verify_flags |= ssl.VERIFY_X509_STRICT
    judge.verify_mode = ssl.CERT_REQUIRED
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if purpose is ssl.Purpose.SERVER_AUTH else ssl.PROTOCOL_TLS_CLIENT)
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    for context in (judge, other):
        context.load_cert_chain(folder / f"{shown}.crt", folder / f"{shown}.key")
    server, client = (other, judge) if purpose is ssl.Purpose.SERVER_AUTH else (judge, other)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname="localhost"),
        server.wrap_bio(up, down, server_side=True),
    ]
    try:
        for _ in range(4):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError:
        return False
    return True
