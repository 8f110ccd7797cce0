"""Secrets in recorded, logged and printed texts. Values are put together here: no scanner finds one in this file."""

from __future__ import annotations

import json
import random
import string
import sys
import time
from pathlib import Path

import pytest

from chessreg.masking import is_secret_name, mask, mask_streams, mask_words

LETTERS, HEX, UPPER = string.ascii_letters + string.digits, "0123456789abcdef", string.ascii_uppercase + string.digits


def of(characters: str, count: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices(characters, k=count))


DASHES = "-" * 5
BODY = "\n".join(of(LETTERS, 64, seed) for seed in range(3))
KEYS = {kind: f"{DASHES}BEGIN {kind}{DASHES}\n{BODY}\n{DASHES}END {kind}{DASHES}" for kind in (
    "RSA " + "PRIVATE KEY", "OPENSSH " + "PRIVATE KEY", "PGP " + "PRIVATE KEY BLOCK")}  # fmt: skip
JWT = "ey" + "J" + of(LETTERS, 30) + "." + "ey" + "J" + of(LETTERS, 60) + "." + of(LETTERS, 43)
BY_SHAPE = {
    "aws key id": "AK" + "IA" + of(UPPER, 16),
    "aws session key id": "AS" + "IA" + of(UPPER, 16),
    "github": "gh" + "p_" + of(LETTERS, 36),
    "github app": "gh" + "s_" + of(LETTERS, 36),
    "github fine-grained": "github" + "_pat_" + of(LETTERS, 82),
    "gitlab": "gl" + "pat-" + of(LETTERS, 20),
    "slack bot": "xo" + "xb-" + of(string.digits, 12) + "-" + of(LETTERS, 24),
    "slack webhook": "https://hooks.slack"
    + ".com/services/T"
    + of(UPPER, 8)
    + "/B"
    + of(UPPER, 8)
    + "/"
    + of(LETTERS, 24),
    "discord webhook": "https://discord" + ".com/api/webhooks/" + of(string.digits, 18) + "/" + of(LETTERS, 68),
    "discord bot": "M" + of(LETTERS, 23) + "." + of(LETTERS, 6) + "." + of(LETTERS, 27),
    "openai": "s" + "k-proj-" + of(LETTERS, 48) + "1",
    "anthropic": "s" + "k-ant-api03-" + of(LETTERS, 93),
    "groq": "gs" + "k_" + of(LETTERS, 52),
    "replicate": "r" + "8_" + of(LETTERS, 37),
    "hugging face": "h" + "f_" + of(LETTERS, 34),
    "google api": "AI" + "za" + of(LETTERS, 35),
    "google oauth": "ya" + "29." + of(LETTERS, 60),
    "google client": "GOC" + "SPX-" + of(LETTERS, 28),
    "stripe": "sk" + "_live_" + of(LETTERS, 24),
    "sendgrid": "S" + "G." + of(LETTERS, 22) + "." + of(LETTERS, 43),
    "mailchimp": of(HEX, 32) + "-us" + "12",
    "twilio": "S" + "K" + of(HEX, 32),
    "telegram": of(string.digits, 9) + ":" + of(LETTERS, 35),
    "npm": "np" + "m_" + of(LETTERS, 36),
    "pypi": "py" + "pi-AgEIcHlwaS5vcmc" + of(LETTERS, 70),
    "jwt": JWT,
    "digitalocean": "do" + "p_v1_" + of(HEX, 64),
    "databricks": "da" + "pi" + of(HEX, 32),
    "vault": "hv" + "s." + of(LETTERS, 24),
    "azure storage": "Account" + "Key=" + of(LETTERS, 86) + "==",
    **{kind.lower(): text for kind, text in KEYS.items()},
}
WORD = of(LETTERS, 20, 7)  # without a recognizable form
WANDB = of(HEX, 40, 8)
BY_NAME = {
    "env": "WANDB_API_" + f"KEY={WANDB}",
    "exported": "export AWS_SECRET_ACCESS_" + f"KEY={of(LETTERS, 40, 9)}",
    "json": json.dumps({"db_" + "password": WORD}),
    "json camel": json.dumps({"client" + "Secret": WORD, "id": 1}),
    "kaggle": json.dumps({"username": "ann", "key": of(HEX, 32)}),
    "yaml": "db:\n  pass" + f"word: {WORD} with spaces\n",
    "yaml block": "sec" + f"ret: |\n  {WORD}\n  {WANDB}\nnext: 1",
    "yaml flow": "db: {pass" + f"word: {WORD}, user: ann}}",
    "toml": "[hub]\nauth_" + f'token = "{WORD}1"',
    "ini": "[db]\npass" + f"wd = {WORD}",
    "python": "API_" + f"KEY = '{WORD}'",
    "typed": "api_" + f'key: str = "{WORD}"',
    "index": 'os.environ["HF_' + f'TOKEN"] = "{WORD}"',
    "url": f"postgresql://ann:{WORD}@box/chess",
    "user alone": f"https://{of(LETTERS, 40)}@github.com/a/b.git",
    "query": "postgresql://box/x?pass" + f"word={WORD}&sslmode=require",
    "header": "Authorization: Bea" + f"rer {WORD}",
    "netrc": "machine box login ann pass" + f"word {WORD}",
    "xml": "<pass" + f"word>{WORD}</password>",
    "curl": f"curl -u ann:{WORD} https://box",
}  # fmt: skip


def secret_in(text: str) -> list[str]:
    """The parts of a value that must not be left: all its words of at least 16 letters and digits."""
    words = "".join(c if c in LETTERS else " " for c in text).split()
    return [word for word in words if len(word) >= 16]


@pytest.mark.parametrize("name", BY_SHAPE)
def test_a_value_of_a_known_shape_is_masked_wherever_it_is(name: str) -> None:
    value = BY_SHAPE[name]
    for text in (value, f"see {value} there", f'x = f("{value}")', f"+  - {value}\n+y: 1", json.dumps({"a": [value]})):
        masked = mask(text)
        assert "***" in masked
        assert not [word for word in secret_in(value) if word in masked], masked
    assert mask(f"see {value} there").startswith("see ")
    assert mask(f"see {value} there").endswith(" there")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_value_of_a_secrets_name_is_masked_and_the_rest_stays(name: str) -> None:
    text = BY_NAME[name]
    masked = mask(text)
    assert WORD not in masked
    assert WANDB not in masked
    assert not [word for word in secret_in(text) if word in masked], masked
    assert "***" in masked
    for rest in ("ann", "user: ann", "sslmode=require", "next: 1", "github.com", "[hub]"):
        assert (rest in text) is (rest in masked), masked
    if name.startswith(("json", "kaggle")):
        json.loads(masked)


def test_there_are_at_least_forty_real_formats() -> None:
    assert len(BY_SHAPE) + len(BY_NAME) >= 40


PLAIN = """token = ids[0]; tokenizer="pgn"; next_token_ids = [1, 2]; max_tokens: 128
def f(password: str, token: str | None = None) -> None: ...
"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token_id": 50256
BOS_TOKEN = 1
PWD=/home/ann/chess
password = getpass.getpass()
api_key = os.environ["API_KEY"]
API_KEY=${API_KEY}
secretary: Bob, compass: north, monkey: 3
commit 0123456789abcdef0123456789abcdef01234567
sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
e4 e5 Nf3 Nc6 Bb5 a6 r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3
0123456789abcdef0123456789abcdef 2026-11-26 14:20:00 task-with-a-long-name-1 risk-free-evaluation-of-moves-2
https://user@example.org/repo.git ssh://git@github.com/a/b.git s3://bucket/prefix/key""".splitlines()


@pytest.mark.parametrize("line", PLAIN)
def test_code_digests_and_games_stay_as_they_are(line: str) -> None:
    assert mask(line) == line


def test_our_own_source_is_not_touched() -> None:
    """Anything masked there is a false alarm."""
    root, touched = Path(__file__).resolve().parents[1] / "chessreg", []
    for path in [*(root / "models").rglob("*.py"), *(root / "encodings").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        touched += [line for line, after in zip(text.split("\n"), mask(text).split("\n"), strict=True) if line != after]
    assert touched == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["x", "--token", "abc"], ["x", "--token", "***"]),
        (["x", "--hf-token=abc"], ["x", "--hf-token=***"]),
        (["HF_TOKEN=abc def", "run"], ["HF_TOKEN=***", "run"]),
        (["--registry", "postgresql://a:b@c/d"], ["--registry", "postgresql://a:***@c/d"]),
        (["--tokenizer", "pgn", "--tokenizer=pgn"], ["--tokenizer", "pgn", "--tokenizer=pgn"]),
        (["--password", "--debug"], ["--password", "--debug"]),
        (["--db-password", "-abc", "-v"], ["--db-password", "***", "-v"]),
        (["--api-key", "x", "--access_key=y"], ["--api-key", "***", "--access_key=***"]),
        (["curl", "-u", "ann:hunter2"], ["curl", "-u", "ann:***"]),
        (["run", "play", "--token-mask", "last"], ["run", "play", "--token-mask", "last"]),
        (["--header", "Authorization: Bearer " + WORD], ["--header", "Authorization: Bearer ***"]),
    ],
)
def test_a_command_line_is_kept_without_its_secrets(given: list[str], kept: list[str]) -> None:
    assert mask_words(given) == kept


def test_a_setting_may_not_be_called_as_a_secret_is() -> None:
    assert all(map(is_secret_name, ("api_key", "hf_token", "password", "clientSecret", "AWS_SECRET_ACCESS_KEY")))
    assert not any(map(is_secret_name, ("tokenizer", "tokens", "token_mask", "key", "passes", "max_tokens")))


def test_lines_are_masked_whole_however_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with mask_streams():
        print("pass" + "word:", WORD, "and", BY_SHAPE["github"])
        sys.stderr.write("the key is ")
        sys.stderr.write(BY_SHAPE["openai"][:20])
        sys.stderr.write(BY_SHAPE["openai"][20:])
    out, err = capsys.readouterr()
    assert out == "password: ***\n"
    assert err == "the key is ***"


PIECES = ("a", "eyJ", "sk-", "://a:", "password", "-", '"password": "', "token_", "AKIA", "x=")


@pytest.mark.parametrize("piece", PIECES)
def test_text_of_any_form_is_masked_in_time(piece: str) -> None:
    text, began = piece * (100_000 // len(piece)), time.process_time()
    mask(text)
    assert time.process_time() - began < 4
