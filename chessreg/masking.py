"""Passwords, keys and tokens in text that is recorded, logged or shown are replaced by `***`.

Two kinds of rule, as in secret scanners (detect-secrets, gitleaks): by the shape of a value, and by the name that a
value is given to in a command line, an environment, JSON, YAML, TOML or code. High entropy alone is not a sign here:
most long values in a registry are digests and commits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import Any, TextIO

MASK = "***"

# -- by shape ---------------------------------------------------------------------------------------------------------

SHAPES = (  # texts of which a value contains one, and the pattern of the value; its first group is kept
    (("AKIA", "ASIA", "ABIA", "ACCA"), r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),  # AWS
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{36,255}"),
    (("github_pat_",), r"github_pat_[A-Za-z0-9_]{22,255}"),
    (("gl",), r"gl(?:pat|dt|ft|soat|rt|rtr|cbt|imt|ptt|agent|oas|ffct)-[A-Za-z0-9_.-]{20,}"),  # GitLab
    (("xox", "xapp-"), r"(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}"),  # Slack
    (("hooks.slack.com/",), r"(hooks\.slack\.com/[a-z]+/)[A-Za-z0-9/_+-]{20,}"),
    (("/api/webhooks/",), r"(discord(?:app)?\.com/api/webhooks/)[\w/-]{60,}"),  # Discord
    ((".",), r"[MNO][A-Za-z\d_-]{23,25}\.[A-Za-z\d_-]{6}\.[A-Za-z\d_-]{27,}"),  # a bot of Discord
    (
        ("sk-", "rk-", "pk-", "pplx-", "xai-"),
        r"(?:sk|rk|pk|pplx|xai)-(?=[\w-]{0,40}\d)[A-Za-z0-9_-]{20,}",
    ),  # OpenAI, …
    (("gsk_",), r"gsk_[A-Za-z0-9]{40,}"),  # Groq
    (("r8_",), r"r8_[A-Za-z0-9]{30,}"),  # Replicate
    (("hf_", "api_org_"), r"(?:hf|api_org)_[A-Za-z0-9]{30,}"),  # Hugging Face
    (("wandb_v",), r"wandb_v\d_[A-Za-z0-9_]{20,}"),
    (("AIza",), r"AIza[A-Za-z0-9_-]{35}"),  # Google
    (("ya29.",), r"ya29\.[A-Za-z0-9_-]{20,}"),
    (("GOCSPX-",), r"GOCSPX-[A-Za-z0-9_-]{20,}"),
    (("_live_", "_test_"), r"[srp]k_(?:live|test)_[A-Za-z0-9]{16,}"),  # Stripe
    (("whsec_",), r"whsec_[A-Za-z0-9+/=]{24,}"),
    (("SG.",), r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"),  # SendGrid
    (("key-",), r"key-[0-9a-f]{32}\b"),  # Mailgun
    (("-us",), r"[0-9a-f]{32}-us\d{1,2}\b"),  # Mailchimp
    (("SK", "AC"), r"(?:SK|AC)[0-9a-f]{32}\b"),  # Twilio
    ((":",), r"\d{8,10}:[A-Za-z0-9_-]{35}\b"),  # Telegram
    (("npm_",), r"npm_[A-Za-z0-9]{36}"),
    (("pypi-",), r"pypi-[A-Za-z0-9_-]{50,}"),
    (("rubygems_",), r"rubygems_[0-9a-f]{48}"),
    (("dckr_pat_",), r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    (("eyJ",), r"eyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)*"),  # a JSON web token
    (("_v1_",), r"do[opr]_v1_[0-9a-f]{64}"),  # DigitalOcean
    (("dapi",), r"dapi[0-9a-f]{32}"),  # Databricks
    (("shp",), r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),  # Shopify
    (("ATATT3",), r"ATATT3[A-Za-z0-9_=-]{50,}"),  # Atlassian
    (("lin_api_",), r"lin_api_[A-Za-z0-9]{30,}"),
    (("ntn_",), r"ntn_[A-Za-z0-9]{40,}"),  # Notion
    (("glsa_",), r"glsa_[A-Za-z0-9_]{32,}"),  # Grafana
    (("dp.",), r"dp\.[a-z]{2}\.[A-Za-z0-9]{40,}"),  # Doppler
    (("hvs.", "hvb."), r"hv[sb]\.[A-Za-z0-9_-]{20,}"),  # Vault
    (("AGE-SECRET-KEY-",), r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    (("Key=", "sig="), r"((?:AccountKey|SharedAccessKey|sig)=)[A-Za-z0-9%+/=]{30,}"),  # Azure
    (("earer ", "EARER ", "asic ", "ASIC "), r"((?i:bearer|basic)[ \t]{1,9})[A-Za-z0-9+/=._~-]{12,}"),  # of HTTP
    (('"key"',), r'("key"[ \t]{0,9}:[ \t]{0,9}")[0-9a-f]{32}(?=")'),  # Kaggle
)
PRIVATE_KEY = re.compile(
    r"(-----BEGIN ([A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?)-----).*?(-----END \2-----|\Z)", re.DOTALL
)
# To the last @: a password may hold one. Lengths are bounded, so that a long word takes no longer than its length.
CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://[^\s/:@]{0,200}):\S{0,2000}@")
USER_ALONE = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://)[^\s/:@]{20,400}@")  # a token in place of a name

# -- by name ----------------------------------------------------------------------------------------------------------

KEYWORD = re.compile(r"(?i)pass|pwd|secret|credential|key|token")  # lines without one hold no name of a secret
NAME = (  # the last part of it, with which the name of a secret begins or continues
    r"(?i:(?:pass(?:word|wd|phrase|code)s?|pwd|secrets?|credentials?|api[_-]?keys?|(?:access|account|auth|client|database"
    r"|db|encryption|license|master|private|secret|service|session|signing|ssh|storage|webhook)[_-]?keys?)"
    r"(?:[_-](?!count|dir|env|field|file|id\b|len|max|min|name|path|policy|prompt|type|ur[il])[\w-]{1,20}|\d{1,2})?)"
)
TOKEN = r"(?:(?<![A-Za-z])token|(?<=[a-z])Token|TOKEN)"
TYPE = (
    r":[ \t]{0,9}(?:str|bytes|string|Any|SecretStr|Optional\[\w{1,20}\]|(?:str|bytes) ?\| ?None)[ \t]{0,9}="  # Python's
)
SIGN = rf"[\"'\]]{{0,2}}[ \t]{{0,9}}(?:{TYPE}|:=|=>|={{1,3}}|!=|:)[ \t]{{0,9}}"
QUOTED_TEXT = r"[a-zA-Z@]{0,2}(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|`[^`]*`?)"
PREFIX = r"[\w.-]{0,60}?"
OF_LINE = (  # each with a `head`, which stays, a `name` or `token`, and a `value`
    re.compile(  # YAML and INI: to the end of the line
        rf"^(?P<head>[-+ \t]{{0,80}}(?P<name>{PREFIX}{NAME})(?:[ \t]{{1,9}}=|[ \t]{{0,9}}:)[ \t]{{1,9}})"
        r"(?P<value>[^\s\"'`({\[|>=].*)$"
    ),
    re.compile(rf"(?P<head>(?:(?P<name>{NAME})|(?P<token>{TOKEN})){SIGN})(?P<value>{QUOTED_TEXT}|[^\s\"'`,;&|()\[\]{{}}<>]+)"
               r"(?P<code>[(\[])?"),
    re.compile(rf"(?P<head>(?=[A-Z0-9_]+=)(?P<name>{NAME})=)(?P<value>[^\s\"'`&][^\s&]*)"),  # of an environment
    re.compile(rf"(?P<head>(?P<name>{NAME})[ \t]{{1,9}})(?P<value>{QUOTED_TEXT})"),
    re.compile(rf"(?P<head><(?P<name>{PREFIX}{NAME})>)(?P<value>[^<]+)(?=</)"),
    re.compile(r"^(?P<head>(?:.*\blogin[ \t]+\S+[ \t]+)?[-+ \t]{0,9}password[ \t]+)(?P<value>\S+)[ \t]*$"),  # .netrc
)  # fmt: skip
USER = re.compile(r"(?P<head>(?:^|\s)(?:-u|--user)[ =][^\s:]{1,100}:)(?P<value>[^\s/]\S*)")  # of curl
BLOCK = re.compile(  # of YAML: the lines below the name, which are indented further
    rf"(?m)^(?P<head>(?P<indent>[+-]?[ \t]{{0,80}})(?:\S.{{0,200}}?)?{NAME}[ \t]{{0,9}}:[ \t]{{0,9}}[|>]"
    r"[-+\d]{0,2}[ \t]{0,9}\n)(?:(?P=indent)[ \t].*(?:\n|\Z))+"
)
CALL = re.compile(r"[A-Za-z_][\w.]*[(\[].*[)\]][\s,;:)\]}]*(?:#.*)?")
NOT_SECRET = re.compile(
    r"(?i)(?:none|null|nil|true|false|str|int|bytes|bool|float|any|optional|string|boolean|self|required|redacted|\*+|"
    r"\$\{?\w*\}?|%\w+%|<[^>]*>|\{\{.*|\.\.\.)?[.,;)]*"
)
SPECIAL = re.compile(r"\d{1,6}|<.*>|\[.*\]")  # tokens of a vocabulary
OPTION = re.compile(rf"--?[\w-]*?(?:{NAME}|(?i:token|pass))")
USER_OPTION = ("-u", "--user")  # of curl and others: NAME:PASSWORD


def mask(text: str) -> str:
    """Return the text with passwords, keys and tokens replaced by `***`.

    >>> mask("postgresql://ann:hunter2@box/chess")
    'postgresql://ann:***@box/chess'
    >>> mask("postgresql://ann:hunt@er/2@box/chess")
    'postgresql://ann:***@box/chess'
    >>> mask("WANDB_TOKEN=abc --lr=1")
    'WANDB_TOKEN=*** --lr=1'
    >>> mask("db: {password: hunter2, user: ann}")
    'db: {password: ***, user: ann}'
    >>> mask("token = ids[0]; tokenizer=pgn; max_tokens: 128")
    'token = ids[0]; tokenizer=pgn; max_tokens: 128'
    """
    if "PRIVATE KEY" in text:
        text = PRIVATE_KEY.sub(rf"\1{MASK}\3", text)
    if "://" in text and "@" in text:
        text = USER_ALONE.sub(rf"\1{MASK}@", CREDENTIALS.sub(rf"\1:{MASK}@", text))
    for needles, pattern in SHAPES:
        if any(needle in text for needle in needles):
            text = _compile_token(pattern).sub(lambda match: (match[1] if match.re.groups else "") + MASK, text)
    if KEYWORD.search(text):
        text = "\n".join(_mask_line(line) if KEYWORD.search(line) else line for line in text.split("\n"))
        text = BLOCK.sub(rf"\g<head>\g<indent>  {MASK}\n", text)
    return USER.sub(rf"\g<head>{MASK}", text) if "-u" in text else text


def mask_words(argv: Sequence[str]) -> list[str]:
    """Return a command line with its secrets masked: as `mask`, all of `--token=x y`, and the word after `--token`."""
    masked_words: list[str] = []
    before = ""
    for word in argv:
        name, equals, _ = word.partition("=")
        if OPTION.fullmatch(before) and not word.startswith("--"):
            masked_words.append(MASK)
        elif before in USER_OPTION and ":" in word:
            masked_words.append(f"{word.partition(':')[0]}:{MASK}")
        elif equals and is_secret_name(name.lstrip("-")):
            masked_words.append(f"{name}={MASK}")
        else:
            masked_words.append(mask(word))
        before = word
    return masked_words


def is_secret_name(name: str) -> bool:
    """Return whether a value of this name is a secret: a setting, a variable, a key of JSON.

    >>> [is_secret_name(name) for name in ("api_key", "WANDB_TOKEN", "dbPassword", "tokenizer", "max_tokens")]
    [True, True, True, False, False]
    """
    return re.fullmatch(rf"[\w.-]*?(?:{NAME}|{TOKEN})", name) is not None


class MaskedLines:
    """A text stream that writes whole lines to `raw`, with secrets masked. `close_line` writes the unfinished last
    line."""

    def __init__(self, raw: TextIO) -> None:
        self.raw, self._line = raw, ""

    def write(self, text: str) -> int:
        """Write the complete lines of `text` with masked secrets, and keep an incomplete last line. Returns the
        characters accepted."""
        self._line += text
        line_end = max(self._line.rfind("\n"), self._line.rfind("\r")) + 1
        if line_end:
            self.raw.write(mask(self._line[:line_end]))
            self._line = self._line[line_end:]
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def close_line(self) -> None:
        self.raw.write(mask(self._line))
        self._line = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def mask_streams() -> Iterator[None]:
    """Mask the text written to stdout and stderr in the block, line by line."""
    stdout, err = MaskedLines(sys.stdout), MaskedLines(sys.stderr)
    try:
        with redirect_stdout(stdout), redirect_stderr(err):
            yield
    finally:
        stdout.close_line()
        err.close_line()


@cache
def _compile_token(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){pattern}")


def _mask_line(line: str) -> str:
    for pattern in OF_LINE:
        line = pattern.sub(_mask_value, line)
    return line


def _mask_value(match: re.Match[str]) -> str:
    """The match with its value masked, unless the value is code, a placeholder or a token of a vocabulary."""
    groups = match.groupdict()
    value, name = groups["value"], groups.get("name") or ""
    quote = next((sign for sign in value[:3] if sign in "\"'`"), "")
    inner = value.partition(quote)[2].removesuffix(quote) if quote else value
    is_code = not quote and (groups.get("code") or value.endswith(("(", "[", "{")) or CALL.fullmatch(value))
    is_folder = name.lower().endswith("pwd") and inner.startswith(("/", "~"))
    if is_code or is_folder or NOT_SECRET.fullmatch(inner):
        return match[0]
    if groups.get("token") and not _is_secret_token(groups["token"], inner, bool(quote)):
        return match[0]
    return groups["head"] + (f"{quote}{MASK}{quote}" if quote else MASK) + (groups.get("code") or "")


def _is_secret_token(name: str, value: str, is_quoted: bool) -> bool:
    """Return whether the value of something called a token is a secret, not a token of a vocabulary."""
    if SPECIAL.fullmatch(value):
        return False
    is_long = len(value) >= (8 if is_quoted else 16)
    return name.isupper() or (is_long and any(c.isdigit() for c in value) and not any(c.isspace() for c in value))
