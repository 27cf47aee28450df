"""Tokens that a hostile client sends, and what each of them gets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey

from gateway.auth.asked import Asked
from gateway.auth.guard import Guard
from gateway.auth.keys import MOST_CANDIDATES, BadKeys, parse_keys
from gateway.auth.permissions import Action
from gateway.auth.remembered_verdicts import Revocation, Verdicts
from gateway.auth.rules import load_rules
from gateway.auth.verdict import AuthRefused, Unauthenticated
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from tests.scenarios.credentials import AUDIENCE, ISSUER, KEYS, PEM_KEYS, SECRET, WALL, jwt_rule, token

PATH = "/ada/s"


def guard_of(folder: Path, *rules: Mapping[str, Any], **more: Any) -> Guard:
    config = GatewayConfig.for_origin("http://origin.test", auth=list(rules) or [jwt_rule(folder)], **more)
    return Guard(config.routes[0], load_rules(config)["default"], Verdicts(lambda: float(WALL), lambda: 1_000.0))


def part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(header: dict[str, Any], claims: Any = None, signature: bytes = b"") -> str:
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": WALL + 60}
    return f"{part({'typ': 'at+jwt', **header})}.{part(good if claims is None else claims)}.{part(signature)}"


def resigned(text: str, key: bytes) -> str:
    """The token with an HMAC by this key."""
    head = text.rpartition(".")[0]
    return f"{head}.{part(hmac.new(key, head.encode(), hashlib.sha256).digest())}"


def with_header(**header: Any) -> str:
    """A token that would be valid without these fields of its header, which are signed, too."""
    return token(header=header)


STRANGERS = ECKey.generate_key("P-256", {"kid": "stranger"})


def vouching(**header: Any) -> str:
    """A valid token of a stranger, whose header says where the stranger's key is."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": WALL, "exp": WALL + 60}
    registry = jws.JWSRegistry(algorithms=["ES256"], strict_check_header=False)
    return jwt.encode({"alg": "ES256", "typ": "at+jwt", **header}, claims, STRANGERS, registry=registry)


PUBLIC_PEM = PEM_KEYS["RS256"].as_pem(private=False)
HOSTILE: dict[str, Callable[[], str]] = {
    "alg none": lambda: unsigned({"alg": "none"}),
    "alg None": lambda: unsigned({"alg": "None"}),
    "no alg": lambda: unsigned({}),
    "alg of another type": lambda: unsigned({"alg": ["ES256"]}),
    "public key as HMAC secret": lambda: resigned(unsigned({"alg": "HS256", "kid": "rsa"}), PUBLIC_PEM),
    "HMAC where it is not accepted": lambda: token(alg="HS256"),
    "signature of another key": lambda: token(header={"kid": "ed"}),
    "unknown kid": lambda: token(header={"kid": "../../dev/null"}),
    "kid as SQL": lambda: token(header={"kid": "x' UNION SELECT 'secret"}),
    "kid of another type": lambda: unsigned({"alg": "ES256", "kid": {"a": 1}}),
    "no kid where several keys fit": lambda: unsigned({"alg": "PS256"}),
    "critical extension": lambda: unsigned({"alg": "ES256", "kid": "ec", "crit": ["exp"]}),
    "unencoded payload": lambda: unsigned({"alg": "ES256", "kid": "ec", "b64": False}),
    "key in the header": lambda: unsigned({"alg": "ES256", "jwk": KEYS["ES256"].as_dict(private=False)}),
    "key of a stranger in the header": lambda: vouching(jwk=STRANGERS.as_dict(private=False)),
    "URL of a stranger's keys": lambda: vouching(kid="stranger", jku="https://issuer.test.evil.test/keys"),
    "URL of a stranger's certificate": lambda: vouching(kid="ec", x5u="https://evil.test/certificate"),
    "certificate of a stranger": lambda: vouching(kid="ec", x5c=[base64.b64encode(STRANGERS.as_der()).decode()]),
    "cut signature": lambda: token()[:-8],
    "no signature": lambda: token().rpartition(".")[0] + ".",
    "changed claims": lambda: ".".join((token().split(".")[0], token("eve").split(".")[1], token().split(".")[2])),
    "four parts": lambda: token() + ".x",
    "no JWT": lambda: "abc",
    "too long": lambda: token(padding="x" * 9_000),
    "nested claims without end": lambda: unsigned({"alg": "ES256"}, b"[" * 5_000),
    "claims that are a list": lambda: unsigned({"alg": "ES256", "kid": "ec"}, [1]),
    "claims that are a token": lambda: unsigned({"alg": "ES256", "kid": "ec", "cty": "JWT"}, token().encode()),
    "a claim twice": lambda: unsigned({"alg": "ES256"}, b'{"iss":"https://issuer.test","sub":"a","sub":"b"}'),
    "a header field twice": lambda: part(b'{"alg":"none","alg":"ES256"}') + "." + token().partition(".")[2],
    "exp that is no number": lambda: unsigned({"alg": "ES256"}, b'{"iss":"https://issuer.test","exp":NaN}'),
    "other issuer": lambda: token(iss="https://other.test"),
    "issuer as a list": lambda: token(iss=[ISSUER]),
    "no issuer": lambda: token(iss=None),
    "other audience": lambda: token(aud="other"),
    "audience that contains it": lambda: token(aud=AUDIENCE + "x"),
    "audiences without it": lambda: token(aud=["a", {"b": AUDIENCE}]),
    "no audience": lambda: token(aud=None),
    "expired": lambda: token(exp=WALL),
    "no expiry": lambda: token(exp=None),
    "expiry as text": lambda: token(exp=str(WALL + 60)),
    "expiry as truth": lambda: token(exp=True),
    "expiry beyond time": lambda: token(exp=10**15),
    "endless expiry": lambda: token(exp=1e308 * 10),
    "not valid yet": lambda: token(nbf=WALL + 60),
    "issued in the future": lambda: token(iat=WALL + 60),
    "an ID token": lambda: token(header={"typ": "JWT"}),
    "no type": lambda: token(header={"typ": None}),
    "no subject": lambda: token(sub=""),
    "token id that is no text": lambda: token(jti=5),
    "subject with a line break": lambda: token("ada\r\nX-Forged: 1"),
    "one permission of two is wrong": lambda: token(streams=["read /ada/s", "rule /ada/s"]),
    "permissions of another type": lambda: token(streams={"read": "/**"}),
    "one detail of two is wrong": lambda: token(
        authorization_details=[
            {"type": "durable-streams", "locations": ["/**"], "actions": ["read"]},
            {"type": "durable-streams", "locations": "/**", "actions": ["read"]},
        ]
    ),
    "a detail that is narrowed in another way": lambda: token(
        authorization_details=[
            {"type": "durable-streams", "locations": ["/**"], "actions": ["read"], "datatypes": ["names"]}
        ]
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_token_gets_a_401_that_repeats_nothing_of_it(name: str, tmp_path: Path) -> None:
    text, failures = HOSTILE[name](), [0]

    def failed() -> None:
        failures[0] += 1

    with pytest.raises(AuthRefused) as refused:
        guard_of(tmp_path).judge(Asked(PATH, (Action.READ,), authorization=[f"Bearer {text}"]), failed=failed)
    error = refused.value
    assert (error.status, failures) == (401, [1])
    assert error.challenge is not None
    assert 'error="invalid_token"' in error.challenge
    assert not any(one and one in f"{error} {error.challenge}" for one in text.split("."))


@pytest.mark.parametrize("alg", [*KEYS, "HS256", "RS256 in PEM"])
def test_good_token_allows_its_own_streams_until_it_expires(alg: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {}
    if alg == "HS256":
        (tmp_path / "secret").write_text(json.dumps({"keys": [SECRET.as_dict()]}))
        more = {"algorithms": ["HS256"]}
    elif alg == "RS256 in PEM":
        (tmp_path / "secret").write_bytes(PUBLIC_PEM)
        alg = "RS256"
    rule = jwt_rule(tmp_path, **more)
    if (tmp_path / "secret").exists():
        rule["keys_file"] = str(tmp_path / "secret")
    guard = guard_of(tmp_path, {**rule, "leeway_s": 5, "tenant_claim": "org"})
    asked = Asked(PATH, (Action.READ,), authorization=[f"bearer {token(alg=alg, org='blue', jti='7')}"])
    for _ in range(2):
        allowed = guard.judge(asked)
        assert allowed.until == WALL + 3_605
        assert (allowed.principal.name, allowed.principal.tenant, allowed.principal.token_id) == ("ada", "blue", "7")
    with pytest.raises(AuthRefused) as refused:
        guard.judge(asked._replace(path="/bob/s"))
    assert refused.value.status == 403


def test_other_keys_of_an_issuer_end_what_the_old_ones_have_signed(tmp_path: Path) -> None:
    rule = jwt_rule(tmp_path)
    guard = guard_of(tmp_path, rule)
    asked = Asked(PATH, (Action.READ,), authorization=[f"Bearer {token()}"])
    allowed = guard.judge(asked)
    assert guard.verdicts.holds(allowed)
    Path(rule["keys_file"]).write_text(json.dumps({"keys": [KEYS["RS256"].as_dict(private=False)]}))
    guard.replace(load_rules(GatewayConfig.for_origin("http://origin.test", auth=[rule]))["default"])
    assert not guard.verdicts.holds(allowed)
    with pytest.raises(AuthRefused):
        guard.judge(asked)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "neither a JWK Set"),
        (b"[" * 100_000, "neither a JWK Set"),
        (b'{"keys": 1}', "no JWK Set"),
        (b'{"keys": []}', "no key"),
        (b'{"keys": [{"kty": "XYZ"}, {"kty": "oct", "use": "enc"}]}', "no key"),
        (b'{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}', "cannot be read|fewer than 32 bytes"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}', "cannot be read|fewer than"),
        (PEM_KEYS["ES256"].as_pem(private=True), "private key"),
        (b"-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----\n", "no public key"),
    ],
)
def test_keys_that_must_not_be_trusted_are_refused_without_showing_them(text: bytes, problem: str) -> None:
    with pytest.raises(BadKeys, match=problem) as refused:
        parse_keys(text)
    assert text[:20].decode() not in str(refused.value) or not text


def test_missing_files_are_mistakes_of_the_configuration(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    rules = [{**jwt_rule(tmp_path), "keys_file": absent}, {"by": "signed", "keys": [{"id": "a", "file": absent}]}]
    with pytest.raises(ConfigError) as refused:
        load_rules(GatewayConfig.for_origin("http://origin.test", auth=rules))
    assert [where in str(refused.value.mistakes) for where in ("auth[0].keys_file", "auth[1].keys")] == [True, True]


def test_token_that_one_rule_verified_is_judged_by_another_for_itself(tmp_path: Path) -> None:
    first = jwt_rule(tmp_path)
    second = jwt_rule(tmp_path, cookie="__Secure-t", audience=["others"])
    guard = guard_of(tmp_path, first, second)
    text = token()
    guard.judge(Asked(PATH, (Action.READ,), authorization=[f"Bearer {text}"]))
    with pytest.raises(AuthRefused):
        guard.judge(Asked(PATH, (Action.READ,), cookies=[f"__Secure-t={text}"]))


def test_known_tokens_are_bounded_by_their_patterns_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.auth.guard.MOST_PATTERNS", 8)
    guard, checks = guard_of(tmp_path, jwt_rule(tmp_path)), []

    def judge(number: int) -> None:
        text = token(jti=str(number), alg="Ed25519", streams=["read /a"] * 3)
        guard.judge(Asked(PATH, (Action.READ,), authorization=[f"Bearer {text}"]), lambda: checks.append(number))

    # An Ed25519 signature is always the same, so the token is, too.
    for number in (1, 2, 2, 1, 3, 2, 1):
        judge(number)
    assert checks == [1, 2, 3, 2, 1]


def test_revoked_key_is_refused_to_tokens_that_do_not_name_it(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, jwt_rule(tmp_path))
    asked = Asked(PATH, (Action.READ,), authorization=[f"Bearer {token(header={'kid': None})}"])
    guard.judge(asked)
    guard.verdicts.revoke(Revocation("key", "ec"), 60)
    with pytest.raises(AuthRefused):
        guard.judge(asked)


def other_keys(curve: str, **fields: str) -> list[dict[str, Any]]:
    """As many keys of the curve as may be tried for one token."""
    return [
        {**{name: value for name, value in key.as_dict(private=False).items() if name != "kid"}, **fields}
        for key in (ECKey.generate_key(curve, private=True) for _ in range(MOST_CANDIDATES))
    ]


ES256 = KEYS["ES256"].as_dict(private=False)


@pytest.mark.parametrize(
    ("others", "own", "is_found"),
    [
        (other_keys("P-256"), ES256, True),
        (other_keys("P-384"), {**ES256, "kid": None}, True),
        (other_keys("P-384", kid="ec"), ES256, True),
        (other_keys("P-256", alg="ES384"), {**ES256, "kid": None}, True),
        (other_keys("P-256")[1:], {**ES256, "kid": None}, True),
        (other_keys("P-256", kid="other"), {**ES256, "kid": None}, True),
        (other_keys("P-256", kid="ec")[1:], ES256, True),
        (other_keys("P-256"), {**ES256, "kid": None}, False),
        (other_keys("P-256"), {**ES256, "kid": "other"}, False),
    ],
)
def test_other_keys_of_an_issuer_do_not_hide_the_one_that_has_signed(
    tmp_path: Path, others: list[dict[str, Any]], own: dict[str, Any], *, is_found: bool
) -> None:
    rule = jwt_rule(tmp_path)
    keys = [{name: value for name, value in key.items() if value is not None} for key in (*others, own)]
    Path(rule["keys_file"]).write_text(json.dumps({"keys": keys}))
    guard, asked = guard_of(tmp_path, rule), Asked(PATH, (Action.READ,), authorization=[f"Bearer {token()}"])
    if is_found:
        assert guard.judge(asked).principal.key_id == "ec"
        return
    with pytest.raises(AuthRefused):
        guard.judge(asked)


@pytest.mark.parametrize("end", ["\udcff", "\xe9", "~", "="])
def test_token_with_characters_that_no_signature_has_is_refused(end: str, tmp_path: Path) -> None:
    guard = guard_of(tmp_path, jwt_rule(tmp_path, parameter="token"))
    with pytest.raises(Unauthenticated):
        guard.judge(Asked(PATH, (Action.READ,), parameters={"token": token() + end}))
