"""Keep a reranker's or judge's verdicts: offsets that improve query vectors, published on evidence.

These thirty names are enough to log, judge, learn and serve. The rooms of the package list more:
`tttembed_rag.judges`, `.judging`, `.embedders`, `.serving`, `.errors`, `.testing`, and `.adapting` for adapters.
"""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.capture.rewardlog import RewardLog
    from tttembed_rag.capture.textvectors import TextVectors
    from tttembed_rag.errors import InputError, JudgeError, TTTEmbedError
    from tttembed_rag.fitting.recipe import Recipe
    from tttembed_rag.gate.deciding import fit
    from tttembed_rag.gate.tuning import tune
    from tttembed_rag.judges.contract import Judge
    from tttembed_rag.judges.cross_encoder import CrossEncoderJudge
    from tttembed_rag.judges.examination import check_judge
    from tttembed_rag.judges.http import HttpJudge
    from tttembed_rag.judges.rubric import RubricJudge
    from tttembed_rag.judges.specs import open_judge
    from tttembed_rag.judging.running import judge_all
    from tttembed_rag.judging.spending import Budget, Price
    from tttembed_rag.learned.learned import Learned
    from tttembed_rag.offsets.evidence import Evidence
    from tttembed_rag.offsets.offset import Offset
    from tttembed_rag.offsets.offsets import Offsets
    from tttembed_rag.rewards.events import Event, Feedback
    from tttembed_rag.rewards.rewards import Rewards
    from tttembed_rag.rewards.scales import Scale
    from tttembed_rag.serving.context import context
    from tttembed_rag.serving.live import LiveOffsets
    from tttembed_rag.serving.log import Known
    from tttembed_rag.serving.steering import Steering
    from tttembed_rag.serving.twopass import TwoPass

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "CrossEncoderJudge",
    "Event",
    "Evidence",
    "Feedback",
    "HttpJudge",
    "InputError",
    "Judge",
    "JudgeError",
    "Known",
    "Learned",
    "LiveOffsets",
    "Offset",
    "Offsets",
    "Price",
    "Recipe",
    "RewardLog",
    "Rewards",
    "RubricJudge",
    "Scale",
    "Steering",
    "TTTEmbedError",
    "TextVectors",
    "TwoPass",
    "check_judge",
    "context",
    "fit",
    "judge_all",
    "open_judge",
    "tune",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.serving.log": ["Known"],
            "tttembed_rag.capture.rewardlog": ["RewardLog"],
            "tttembed_rag.capture.textvectors": ["TextVectors"],
            "tttembed_rag.errors": ["InputError", "JudgeError", "TTTEmbedError"],
            "tttembed_rag.fitting.recipe": ["Recipe"],
            "tttembed_rag.gate.deciding": ["fit"],
            "tttembed_rag.gate.tuning": ["tune"],
            "tttembed_rag.judges.contract": ["Judge"],
            "tttembed_rag.judges.cross_encoder": ["CrossEncoderJudge"],
            "tttembed_rag.judges.examination": ["check_judge"],
            "tttembed_rag.judges.http": ["HttpJudge"],
            "tttembed_rag.judges.rubric": ["RubricJudge"],
            "tttembed_rag.judges.specs": ["open_judge"],
            "tttembed_rag.judging.running": ["judge_all"],
            "tttembed_rag.judging.spending": ["Budget", "Price"],
            "tttembed_rag.learned.learned": ["Learned"],
            "tttembed_rag.offsets.evidence": ["Evidence"],
            "tttembed_rag.offsets.offsets": ["Offsets"],
            "tttembed_rag.offsets.offset": ["Offset"],
            "tttembed_rag.rewards.events": ["Event", "Feedback"],
            "tttembed_rag.rewards.rewards": ["Rewards"],
            "tttembed_rag.rewards.scales": ["Scale"],
            "tttembed_rag.serving.context": ["context"],
            "tttembed_rag.serving.live": ["LiveOffsets"],
            "tttembed_rag.serving.steering": ["Steering"],
            "tttembed_rag.serving.twopass": ["TwoPass"],
        },
    )
