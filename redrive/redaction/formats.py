"""Secrets that are recognised by their shape: keys and tokens of clouds, forges and services, and our own. Data.

Each begins with a literal that is rare elsewhere; the scanner searches for all literals at once, and then matches the
rest of the one it found. That match fails after a bounded number of characters, or not at all.
"""

from typing import Final

_WORD: Final = r"[A-Za-z0-9_-]"
_ALNUM: Final = r"[A-Za-z0-9]"
_HEX: Final = r"[0-9a-fA-F]"

FORMATS: Final[dict[str, str]] = {
    # Our own: API tokens and the secrets of sign-in links.
    "rdt_": rf"{_WORD}{{16,}}+",
    "/sign-in/link/": rf"{_WORD}{{8,}}+",
    # Clouds.
    **dict.fromkeys(("AKIA", "ASIA", "ABIA", "ACCA"), r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    "ABSK": r"[A-Za-z0-9+/]{60,}+",
    "AIza": rf"{_WORD}{{30,}}+",
    "ya29.": rf"{_WORD}{{20,}}+",
    "GOCSPX-": rf"{_WORD}{{20,}}+",
    "1//0": rf"{_WORD}{{30,}}+",
    "8Q~": r"[A-Za-z0-9_~.-]{31,}+",
    "LTAI": rf"{_ALNUM}{{17,}}+",
    "dop_v1_": rf"{_HEX}{{40,}}+",
    "doo_v1_": rf"{_HEX}{{40,}}+",
    "dor_v1_": rf"{_HEX}{{40,}}+",
    "HRKU-": rf"{_WORD}{{20,}}+",
    "tskey-": rf"{_WORD}{{16,}}+",
    # Forges, registries and build services.
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), rf"{_ALNUM}{{20,}}+"),
    "github_pat_": r"[A-Za-z0-9_]{20,}+",
    **dict.fromkeys(
        ("glpat-", "gldt-", "glrt-", "glsoat-", "glptt-", "glft-", "glimt-", "glagent-", "glcbt-", "glffct-"),
        r"[A-Za-z0-9_.-]{16,}+",
    ),
    "GR1348941": rf"{_WORD}{{16,}}+",
    "ATBB": rf"{_ALNUM}{{24,}}+",
    "ATATT3": r"[A-Za-z0-9_=-]{20,}+",
    "ATCTT3": r"[A-Za-z0-9_=-]{20,}+",
    "npm_": rf"{_ALNUM}{{30,}}+",
    "pypi-": rf"{_WORD}{{40,}}+",
    "rubygems_": rf"{_HEX}{{40,}}+",
    "dckr_pat_": rf"{_WORD}{{20,}}+",
    "dckr_oat_": rf"{_WORD}{{20,}}+",
    "CCIPAT_": rf"{_WORD}{{20,}}+",
    "bkua_": rf"{_ALNUM}{{30,}}+",
    "AKCp": rf"{_ALNUM}{{60,}}+",
    "hvs.": rf"{_WORD}{{20,}}+",
    "hvb.": rf"{_WORD}{{20,}}+",
    "hvr.": rf"{_WORD}{{20,}}+",
    ".atlasv1.": rf"{_WORD}{{40,}}+",
    "pul-": rf"{_HEX}{{40}}",
    **dict.fromkeys(("dp.pt.", "dp.st.", "dp.ct.", "dp.sa."), r"[A-Za-z0-9._-]{40,}+"),
    "AGE-SECRET-KEY-1": r"[A-Z0-9]{20,}+",
    "ops_ey": r"[A-Za-z0-9_+/=-]{40,}+",
    # Payments and shops.
    **dict.fromkeys(("sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_"), rf"{_ALNUM}{{8,}}+"),
    "whsec_": r"[A-Za-z0-9+/=_-]{16,}+",
    "sq0atp-": rf"{_WORD}{{20,}}+",
    "sq0csp-": rf"{_WORD}{{20,}}+",
    "EAAA": rf"{_WORD}{{56,}}+",
    **dict.fromkeys(("shpat_", "shpca_", "shppa_", "shpss_"), rf"{_HEX}{{32}}"),
    "rzp_live_": rf"{_ALNUM}{{14,}}+",
    "rzp_test_": rf"{_ALNUM}{{14,}}+",
    "access_token$production$": r"[0-9a-z$]{16,}+",
    "FLWSECK": r"[A-Za-z0-9_-]{12,}+",
    # Messages and mail.
    **dict.fromkeys(
        ("xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxe-", "xoxc-", "xoxd-", "xapp-"), r"[A-Za-z0-9%.-]{10,}+"
    ),
    "xoxe.": r"[A-Za-z0-9.-]{10,}+",
    "hooks.slack.com/services/": r"[A-Za-z0-9/_-]{8,}+",
    "hooks.slack.com/workflows/": r"[A-Za-z0-9/_-]{8,}+",
    "/api/webhooks/": r"[0-9]{8,}+/[A-Za-z0-9_-]{8,}+",
    "SG.": rf"{_WORD}{{16,64}}+\.{_WORD}{{16,}}+",
    "key-": rf"{_HEX}{{32}}(?![A-Za-z0-9])",
    "xkeysib-": rf"{_WORD}{{40,}}+",
    ":AA": rf"{_WORD}{{33}}(?![A-Za-z0-9_-])",
    # Models.
    "sk-": rf"{_WORD}{{20,}}+",
    "gsk_": rf"{_ALNUM}{{30,}}+",
    "hf_": rf"{_ALNUM}{{30,}}+",
    "api_org_": rf"{_ALNUM}{{30,}}+",
    "r8_": rf"{_ALNUM}{{30,}}+",
    "pplx-": rf"{_ALNUM}{{30,}}+",
    "xai-": rf"{_ALNUM}{{40,}}+",
    # Data and monitoring.
    "dapi": rf"{_HEX}{{32}}",
    "glsa_": rf"{_WORD}{{30,}}+",
    "glc_": r"[A-Za-z0-9+/=]{30,}+",
    "NRAK-": r"[A-Z0-9]{20,}+",
    "NRII-": rf"{_WORD}{{20,}}+",
    "sntrys_": r"[A-Za-z0-9+/=_-]{30,}+",
    "sntryu_": rf"{_HEX}{{40,}}+",
    "sbp_": rf"{_HEX}{{40,}}+",
    **dict.fromkeys(("pscale_tkn_", "pscale_pw_", "pscale_oauth_"), r"[A-Za-z0-9_=.-]{20,}+"),
    "PMAK-": rf"{_HEX}{{24}}-{_HEX}{{34}}",
    "lin_api_": rf"{_ALNUM}{{30,}}+",
    "ntn_": rf"{_ALNUM}{{40,}}+",
    "secret_": rf"{_ALNUM}{{43}}(?![A-Za-z0-9])",
    "figd_": rf"{_WORD}{{30,}}+",
    "phx_": rf"{_ALNUM}{{30,}}+",
    # Tokens of a standard: JSON Web Tokens, signed or encrypted.
    "eyJ": r"[A-Za-z0-9_-]++\.[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]*+)*+",
}
"""Literal, and what follows it."""

WITHIN: Final = frozenset({"/sign-in/link/", ".atlasv1.", "8Q~", ":AA", "/api/webhooks/", "hooks.slack.com/services/"})
"""Formats whose literal may come right after a letter or digit; all others begin a word."""
