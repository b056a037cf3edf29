"""Reward models of all kinds, with one contract: scores for the documents of a query."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.clients.fingerprints import INSTRUCTION, fingerprint_of
    from tttembed_rag.clients.retrying import BusyError, Patience
    from tttembed_rag.clients.usage import Usage
    from tttembed_rag.judges.chats import AnthropicChat, Gemini, LocalChat, OpenAIChat
    from tttembed_rag.judges.contract import Judge
    from tttembed_rag.judges.cross_encoder import CrossEncoderJudge
    from tttembed_rag.judges.examination import check_judge
    from tttembed_rag.judges.http import HttpJudge
    from tttembed_rag.judges.rubric import RubricJudge
    from tttembed_rag.judges.specs import open_judge
    from tttembed_rag.judges.yesno import YesNoJudge

__all__ = [
    "INSTRUCTION",
    "AnthropicChat",
    "BusyError",
    "CrossEncoderJudge",
    "Gemini",
    "HttpJudge",
    "Judge",
    "LocalChat",
    "OpenAIChat",
    "Patience",
    "RubricJudge",
    "Usage",
    "YesNoJudge",
    "check_judge",
    "fingerprint_of",
    "open_judge",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.clients.fingerprints": ["INSTRUCTION", "fingerprint_of"],
            "tttembed_rag.clients.retrying": ["BusyError", "Patience"],
            "tttembed_rag.clients.usage": ["Usage"],
            "tttembed_rag.judges.chats": ["AnthropicChat", "Gemini", "LocalChat", "OpenAIChat"],
            "tttembed_rag.judges.contract": ["Judge"],
            "tttembed_rag.judges.cross_encoder": ["CrossEncoderJudge"],
            "tttembed_rag.judges.examination": ["check_judge"],
            "tttembed_rag.judges.http": ["HttpJudge"],
            "tttembed_rag.judges.rubric": ["RubricJudge"],
            "tttembed_rag.judges.specs": ["open_judge"],
            "tttembed_rag.judges.yesno": ["YesNoJudge"],
        },
    )
