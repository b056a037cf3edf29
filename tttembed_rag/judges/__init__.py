"""Reward models of all kinds, with one contract: scores for the documents of a query."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.clients.fingerprints import INSTRUCTION as INSTRUCTION
    from tttembed_rag.clients.fingerprints import fingerprint_of as fingerprint_of
    from tttembed_rag.clients.retrying import BusyError as BusyError
    from tttembed_rag.clients.retrying import Patience as Patience
    from tttembed_rag.clients.usage import Usage as Usage
    from tttembed_rag.judges.chats import AnthropicChat as AnthropicChat
    from tttembed_rag.judges.chats import Gemini as Gemini
    from tttembed_rag.judges.chats import LocalChat as LocalChat
    from tttembed_rag.judges.chats import OpenAIChat as OpenAIChat
    from tttembed_rag.judges.contract import Judge as Judge
    from tttembed_rag.judges.cross_encoder import CrossEncoderJudge as CrossEncoderJudge
    from tttembed_rag.judges.examination import check_judge as check_judge
    from tttembed_rag.judges.http import HttpJudge as HttpJudge
    from tttembed_rag.judges.rubric import RubricJudge as RubricJudge
    from tttembed_rag.judges.specs import open_judge as open_judge
    from tttembed_rag.judges.yesno import YesNoJudge as YesNoJudge

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
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
