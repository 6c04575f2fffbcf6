"""Secrets as they turn up in texts and documents, each with the words that must never be seen, and harmless lookalikes.

Every value is made up. Those of a known format are put together here from a literal and filler, so that no scanner of
repositories takes them for real ones.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

WORD: Final = "Zq7hunter2Xk9"
_FILLER: Final = "Zq7f0aB3dE5gH1jK9mN2pQ4rS6tU8vW0xY1zA3bC5dE7fG9hJ2kL4mN6pR8sT0uV"
_HEX: Final = "c0ffee7a11ba5eba11decade0ddba11c0ffee7a11ba5eba11decade0ddba11ab"
_UPPER: Final = "ZQ7HUNTER2XK9ABCDEFGHJKLMNPQRSTUVWXYZ23456"
CARD: Final = "4539148803436467"
AMEX: Final = "378282246310005"


@dataclass(frozen=True)
class Planted:
    """A text or a document with a secret in it, and the part of it that must not be seen anywhere."""

    name: str
    carrier: Any
    secret: str = WORD


def _token(name: str, literal: str, length: int, filler: str = _FILLER) -> Planted:
    body = (filler * 4)[:length]
    return Planted(name, f"refused for {literal}{body} by the service", body)


TEXTS: Final = [
    # By name.
    Planted("assignment", f"password={WORD} next"),
    Planted("colon", f"db_password: {WORD}, user: bob"),
    Planted("json text", f'{{"password": "{WORD}", "user": "bob"}}'),
    Planted("python repr", f"{{'api_key': '{WORD}', 'n': 1}}"),
    Planted("bytes repr", f"{{'password': b'{WORD}'}}"),
    Planted("escaped json", f'{{\\"token\\":\\"{WORD}\\",\\"n\\":1}}'),
    Planted("twice escaped json", f'{{\\\\\\"secret\\\\\\":\\\\\\"{WORD}\\\\\\"}}'),
    Planted("html escaped json", f"{{&quot;password&quot;:&quot;{WORD}&quot;}}"),
    Planted("percent escaped json", f"body=%7B%22password%22%3A%22{WORD}%22%7D"),
    Planted("model repr", f"Settings(cvv='{WORD}', x=1)"),
    Planted("hash rocket", f"client_secret => '{WORD}'"),
    Planted("go assignment", f'apiKey := "{WORD}"'),
    Planted("index assignment", f"os.environ['DB_PASSWORD'] = '{WORD}'"),
    Planted("shell index", f"env[API_KEY]={WORD}"),
    Planted("triple quotes", f'password="""{WORD} and more"""'),
    Planted("never closed", f'password="{WORD} and more'),
    Planted("angle brackets", f"password=<{WORD}>"),
    Planted("query", f"GET /pay?token={WORD}&page=2"),
    Planted("percent encoded", f"next%3Dx token%3D{WORD}"),
    Planted("pass", f"smtp_pass={WORD}"),
    Planted("pass alone", f"user=app pass={WORD}"),
    Planted("pin", f"pin: {WORD}"),
    Planted("user pin", f"userPin={WORD}"),
    Planted("pw", f"pw={WORD}"),
    Planted("pwd in a connection string", f"Server=db;Uid=app;Pwd={WORD};"),
    Planted("camel case", f"authHeader: {WORD}"),
    Planted("passphrase", f"ssh passphrase: {WORD}"),
    Planted("pass word", f"pass-word: {WORD}"),
    Planted("otp", f"otp={WORD}"),
    Planted("totp", f"totp: {WORD}"),
    Planted("mnemonic", f'mnemonic="{WORD} apple river"'),
    Planted("seed phrase", f"seed_phrase: '{WORD} apple'"),
    Planted("account key", f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={WORD}=="),
    Planted("shared access key", f"SharedAccessKey={WORD}="),
    Planted("connection string", f"connection_string: {WORD}"),
    Planted("yaml block", f"password: |\n  {WORD}\n  second line\nuser: bob"),
    Planted("json over lines", f'"password":\n    "{WORD}"'),
    Planted("xml element", f"<db><password>{WORD}</password></db>"),
    Planted("xml attribute", f'<db password="{WORD}"/>'),
    Planted("config attribute pair", f'<add key="DbPassword" value="{WORD}"/>'),
    Planted("plist", f"<key>apiPassword</key>\n<string>{WORD}</string>"),
    Planted("list", f'passwords: ["a", "{WORD}"]'),
    Planted("list of tokens", f'"tokens": ["{WORD}", "b"]'),
    Planted("tuple", f"auth=('user', '{WORD}')"),
    Planted("object", f'"credentials": {{"user": "x", "key": "{WORD}"}}'),
    Planted("list that is cut", f'"secrets": ["a", "{WORD}", "b'),
    Planted("name and value", f'{{"name": "DB_PASSWORD", "value": "{WORD}"}}'),
    Planted("value and name", f'{{"value": "{WORD}", "name": "DB_PASSWORD"}}'),
    Planted("key and value", f"{{'key': 'api_key', 'value': '{WORD}'}}"),
    Planted("name, type and value", f'{{"name":"client_secret","type":"string","value":"{WORD}"}}'),
    Planted("escaped name and value", f'{{\\"name\\": \\"API_TOKEN\\", \\"value\\": \\"{WORD}\\"}}'),
    Planted("pydantic", f"pin\n  Input should be an integer [type=int_type, input_value='{WORD}', input_type=str]"),
    # In headers.
    Planted("authorization", f"Authorization: Bearer {WORD}"),
    Planted("custom authorization", f"Authorization: Custom a {WORD} c\nHost: x"),
    Planted("proxy authorization", f"Proxy-Authorization: Basic {WORD}="),
    Planted("cookie", f'Cookie: a="1"; session={WORD}'),
    Planted("set-cookie", f"Set-Cookie: id={WORD}; Path=/"),
    Planted("x-api-key", f"X-Api-Key: {WORD}"),
    Planted("bearer", f"sent bearer {WORD}"),
    Planted("basic", f"sent Basic {WORD}=="),
    Planted("negotiate", f"sent Negotiate {WORD}=="),
    Planted("aws signature header", f"AWS4-HMAC-SHA256 SignedHeaders=host, Signature={WORD}"),
    # In addresses.
    Planted("url password", f"postgres://app:{WORD}@db:5432/x"),
    Planted("url password with an at", f"postgres://app:p@{WORD}@db:5432/x"),
    Planted("url without user", f"redis://:{WORD}@cache:6379"),
    Planted("sas", f"https://x.blob.core.windows.net/c/f?sv=2022&sig={WORD}%3D&se=2030"),
    Planted("presigned", f"https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={WORD}"),
    Planted("presigned credential", f"https://b.s3.amazonaws.com/k?X-Amz-Credential={WORD}%2F20240101"),
    Planted("google signed", f"https://storage.googleapis.com/b/o?X-Goog-Signature={WORD}"),
    Planted("sign-in link", f"see http://127.0.0.1:8300/sign-in/link/{WORD}abcdef for it"),
    Planted("slack webhook", f"POST https://hooks.slack.com/services/T000/B000/{WORD} answered 404"),
    Planted("discord webhook", f"https://discord.com/api/webhooks/123456789012345678/{WORD}"),
    # In command lines.
    Planted("long option", f"pg_dump --password {WORD} --verbose"),
    Planted("long option, quoted", f"cli --api-key '{WORD}'"),
    Planted("long option, equals", f"cli --client-secret={WORD}"),
    Planted("option in a list", f"['cli', '--token', '{WORD}']"),
    Planted("short option", f"sshpass -p {WORD} ssh host"),
    Planted("glued option", f"mysql -u root -p{WORD} shop"),
    Planted("curl user", f"curl -u admin:{WORD} https://x"),
    Planted("curl long user", f"curl --user admin:{WORD} https://x"),
    Planted("curl user in a list", f'["curl", "-u", "admin:{WORD}"]'),
    Planted("sql", f"CREATE ROLE app LOGIN PASSWORD '{WORD}'"),
    Planted("sql identified", f"CREATE USER app IDENTIFIED BY '{WORD}'"),
    Planted("netrc", f"machine h login bob password {WORD}"),
    Planted("exported", f"export PGPASSWORD={WORD}"),
    # By shape.
    Planted("card", f"paid with {CARD}.", CARD),
    Planted("card with spaces", "paid with 4539 1488 0343 6467 12/28", "4539 1488 0343 6467"),
    Planted("card with dashes", "card 4539-1488-0343-6467", "4539-1488-0343-6467"),
    Planted("card with dots", "card 4539.1488.0343.6467", "4539.1488.0343.6467"),
    Planted("amex", f"card {AMEX}", AMEX),
    Planted("amex with spaces", "card 3782 822463 10005", "3782 822463 10005"),
    Planted("private key", f"-----BEGIN RSA PRIVATE KEY-----\n{WORD}\n-----END RSA PRIVATE KEY-----"),
    Planted("private key that is cut", f"-----BEGIN PRIVATE KEY-----\n{WORD}"),
    Planted("private key without its beginning", f"{WORD}\n-----END PRIVATE KEY-----"),
    Planted("openssh key", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{WORD}\n-----END OPENSSH PRIVATE KEY-----"),
    Planted("pgp key", f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{WORD}\n-----END PGP PRIVATE KEY BLOCK-----"),
    Planted("putty key", f"Private-Lines: 2\n{WORD}\n{WORD}\n"),
    Planted("jwt", f"it was eyJhbGciOiJIUzI1NiJ9.{WORD}payload.{WORD}signature"),
    _token("our token", "rdt" + "_", 43),
    _token("aws key id", "AK" + "IA", 16, _UPPER),
    _token("aws session key id", "AS" + "IA", 16, _UPPER),
    _token("google api key", "AI" + "za", 35),
    _token("google access token", "ya" + "29.", 60),
    _token("google client secret", "GOC" + "SPX-", 28),
    _token("azure client secret", "abc8" + "Q~", 34),
    _token("github classic", "gh" + "p_", 36),
    _token("github oauth", "gh" + "o_", 36),
    _token("github app", "gh" + "s_", 36),
    _token("github fine grained", "github" + "_pat_", 60),
    _token("gitlab", "gl" + "pat-", 20),
    _token("gitlab deploy", "gl" + "dt-", 20),
    _token("atlassian", "ATA" + "TT3", 60),
    _token("npm", "np" + "m_", 36),
    _token("pypi", "py" + "pi-", 64),
    _token("docker", "dckr" + "_pat_", 27),
    _token("vault", "hv" + "s.", 24),
    _token("doppler", "dp" + ".pt.", 43),
    _token("digitalocean", "dop" + "_v1_", 64, _HEX),
    _token("stripe", "sk_" + "live_", 24),
    _token("stripe restricted", "rk_" + "live_", 24),
    _token("stripe webhook", "wh" + "sec_", 32),
    _token("square", "sq0" + "atp-", 22),
    _token("shopify", "shp" + "at_", 32, _HEX),
    _token("slack bot", "xo" + "xb-", 40),
    _token("slack user", "xo" + "xp-", 40),
    _token("slack app", "xa" + "pp-", 40),
    _token("sendgrid", "S" + "G.abcdefghijklmnopqrstuv.", 43),
    _token("mailgun", "ke" + "y-", 32, _HEX),
    _token("twilio", "S" + "K", 32, _HEX),
    _token("telegram", "123456789" + ":AA", 33),
    _token("openai", "s" + "k-", 48),
    _token("openai project", "s" + "k-proj-", 48),
    _token("anthropic", "s" + "k-ant-api03-", 60),
    _token("hugging face", "h" + "f_", 34),
    _token("groq", "gs" + "k_", 52),
    _token("databricks", "da" + "pi", 32, _HEX),
    _token("grafana", "gl" + "sa_", 40),
    _token("new relic", "NR" + "AK-", 27, _UPPER),
    _token("sentry", "snt" + "rys_", 60),
    _token("supabase", "sb" + "p_", 40, _HEX),
    _token("planetscale", "pscale" + "_pw_", 43),
    _token("linear", "lin" + "_api_", 40),
    _token("age", "AGE-SECRET-" + "KEY-1", 40, _UPPER),
    _token("tailscale", "ts" + "key-auth-", 24),
]
"""Secrets in texts."""

DOCUMENTS: Final = [
    Planted("named", {"db_password": WORD}),
    Planted("nested", {"a": [{"clientSecret": {"b": [WORD]}}]}),
    Planted("list under a name", {"passwords": ["x", WORD]}),
    Planted("plural", {"refresh_tokens": [WORD]}),
    Planted("pass member", {"pass": WORD}),
    Planted("pin member", {"pin": WORD}),
    Planted("numeric pin", {"user_pin": 918273645}, "918273645"),
    Planted("card as a number", {"n": int(CARD)}, CARD),
    Planted("card as a float", {"n": float(CARD)}, CARD),
    Planted("name and value members", {"env": [{"name": "DB_PASSWORD", "value": WORD}]}),
    Planted("value and name members", {"env": [{"value": WORD, "name": "DB_PASSWORD"}]}),
    Planted("Key and Value members", {"Tags": [{"Key": "ApiToken", "Value": WORD}]}),
    Planted("header pair", {"headers": [["Authorization", f"Custom {WORD}"], ["Accept", "*/*"]]}),
    Planted("arguments", {"args": ["cli", "--password", WORD, "--verbose"]}),
    Planted("short arguments", {"args": ["sshpass", "-p", WORD]}),
    Planted("user argument", {"args": ["curl", "-u", f"admin:{WORD}"]}),
    Planted("secret as a name", {f"Bearer {WORD}": 1}),
    Planted("json in a text", {"body": json.dumps({"password": WORD})}),
    Planted("json in json in a text", {"body": json.dumps({"body": json.dumps({"api_key": WORD})})}),
]
"""Secrets in documents."""

HARMLESS: Final = [
    "step 'charge' failed after 3 attempts",
    "Bearer token is missing",
    "basic authentication failed",
    "basic knowledge of the shipping department",
    "max_tokens=512 tokens: 7 token_count=9",
    "at 1700000000000 and 1700000000000000",
    "2024-05-06T07:08:09.123456+00:00",
    "run 550e8400-e29b-41d4-a716-446655440000",
    "run-0190f1a2b3c4d5e6f708192a3b4c5d6e",
    "run-mfrggzdfmztwq2lknnwg23tpobyxe43u",
    "order 4111111111111112",
    "0.4111111111111111",
    "pi is 3.141592653589793 and e is 2.718281828459045",
    "http://host:8080/a@b",
    "https://example.org/path?page=2&sort=name#top",
    "idempotency_key=run-1:charge:create",
    "billing:ada:invoice-2024-0099:create:v1",
    "10.0.0.1:5432 and 192.168.100.200:65535",
    "version 1.35.0 of the worker, build 4f9a1c7be2",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "passenger list of the author: keyboard, monkey, tokenizer",
    "the session of compass and pinboard has passed",
    "KeyError: 'name'",
    'File "/srv/app/charge.py", line 12, in charge',
    "mkdir -p /var/lib/app && docker run -p 8080:80 -u 1000:1000 app",
    '{"name": "REGION", "value": "eu-west-1"}',
    "status=DLQ_PENDING attempts=4 latency_ms=12.5",
    "HTTP 422 Unprocessable Entity: amount must be positive",
    "ada@example.org wrote to bob@example.org",
    "Unexpected token '<' at position 0",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "password authentication failed for user",
    "the secret is missing; set REDRIVE_TOKEN",
    "",
]
"""Texts in which nothing may be hidden."""

HARMLESS_DOCUMENTS: Final = [
    {"max_tokens": 512, "tokens": 7, "token_count": 3, "session": "s-1", "pass_count": 2, "pinned": "yes"},
    {"key": "order-1", "value": "12.50", "name": "REGION"},
    {"at": 1700000000000, "amount": 1999, "ratio": 0.25, "order": 4111111111111112},
    {"args": ["run", "--verbose", "-p", "8080"], "pair": ["region", "eu"]},
    {"password": None, "has_secret": True},
]
"""Documents in which nothing may be hidden."""
