"""Language models: OpenAI-compatible chat completions and Anthropic's messages.

ServiceError                 as everywhere: the service's status and category
├── AnswerRefused            a content filter, or the model itself, refused to answer
├── ContextTooLong           the prompt is longer than the model reads
└── AnswerUnfit              the answer does not fit the model that was asked for
Terminal
└── OverBudget               the run has used the tokens that it may use
"""

from redrive.connectors.llm.answers import Answer, AnswerRefused, AnswerUnfit, ContextTooLong, Message, Usage
from redrive.connectors.llm.budget import Budget, OverBudget
from redrive.connectors.llm.client import Llm

__all__ = [
    "Answer",
    "AnswerRefused",
    "AnswerUnfit",
    "Budget",
    "ContextTooLong",
    "Llm",
    "Message",
    "OverBudget",
    "Usage",
]
