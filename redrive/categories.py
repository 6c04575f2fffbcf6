"""The categories that failures fall into: whether a retry can help, and what an operator should do."""

from enum import StrEnum


class Category(StrEnum):
    """The kind of failure, with its advice to an operator. It decides, with the policy, whether to retry."""

    advice: str

    def __new__(cls, name: str, advice: str = "") -> "Category":
        """Make a category. One without advice is not made: pages show it."""
        if not advice:
            raise TypeError(f"category {name!r} needs advice for operators")
        category = str.__new__(cls, name)
        category._value_ = name
        category.advice = advice
        return category

    TIMEOUT = "timeout", "The service did not answer in time. Replay when it answers again."
    NETWORK = "network", "The service could not be reached. Replay when it is back."
    RATE_LIMIT = "rate_limit", "The service asked for fewer calls. Replay slowly."
    PROVIDER_5XX = "provider_5xx", "The service failed on its side. Replay when it works again."
    VALIDATION = "validation", "The input does not fit. Edit it, then replay."
    MISSING_CONFIG = "missing_config", "Something is not set up. Set it up, then replay."
    PROVIDER_4XX = (
        "provider_4xx",
        "The service refused the request. Edit the input, or fix the account, then replay.",
    )
    CONFLICT = "conflict", "The service has other data under this key. Look there first."
    INTEGRITY = "integrity", "The database refused the data. Edit the input, then replay."
    SERIALIZATION = "serialization", "The step's answer could not be written as JSON. Fix the module, then replay."
    TOO_LARGE = "too_large", "The data is over its limit. Edit the input, or fix the module, then replay."
    UNKNOWN_MODULE = "unknown_module", "No worker knows this module. Deploy it, then replay."
    UNKNOWN = "unknown", "No rule knows this error. Read it before you replay."


TRANSIENT_CATEGORIES = frozenset({Category.TIMEOUT, Category.NETWORK, Category.RATE_LIMIT, Category.PROVIDER_5XX})
TERMINAL_CATEGORIES = frozenset(Category) - TRANSIENT_CATEGORIES - {Category.UNKNOWN}
