"""Reward models of all kinds, with one contract: scores for the documents of a query."""

from tttembed_rag.clients.fingerprints import INSTRUCTION, fingerprint_of
from tttembed_rag.clients.retrying import BusyError, Patience
from tttembed_rag.clients.usage import Usage
from tttembed_rag.judges.chat import LocalChat
from tttembed_rag.judges.chats import AnthropicChat, Gemini, OpenAIChat
from tttembed_rag.judges.contract import Blocking, Judge, Scores, ascored, checked_judge, checked_rewards, scored
from tttembed_rag.judges.cross_encoder import CrossEncoderJudge
from tttembed_rag.judges.examination import check_judge
from tttembed_rag.judges.http import HttpJudge
from tttembed_rag.judges.rubric import RubricJudge
from tttembed_rag.judges.specs import open_judge
from tttembed_rag.judges.yesno import YesNoJudge

__all__ = [
    "INSTRUCTION",
    "AnthropicChat",
    "Blocking",
    "BusyError",
    "CrossEncoderJudge",
    "Gemini",
    "HttpJudge",
    "Judge",
    "LocalChat",
    "OpenAIChat",
    "Patience",
    "RubricJudge",
    "Scores",
    "Usage",
    "YesNoJudge",
    "ascored",
    "check_judge",
    "checked_judge",
    "checked_rewards",
    "fingerprint_of",
    "open_judge",
    "scored",
]
