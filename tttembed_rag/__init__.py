"""Keep a reranker's or judge's verdicts: offsets that improve query vectors, published on evidence.

These thirty names are enough to log, judge, learn and serve. The rooms of the package list more:
`tttembed_rag.judges`, `.judging`, `.embedders`, `.serving`, `.errors`, `.testing`, and `.adapting` for adapters.
"""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.capture.learned import Learned as Learned
    from tttembed_rag.capture.rewardlog import RewardLog as RewardLog
    from tttembed_rag.capture.textvectors import TextVectors as TextVectors
    from tttembed_rag.errors import InputError as InputError
    from tttembed_rag.errors import JudgeError as JudgeError
    from tttembed_rag.errors import TTTEmbedError as TTTEmbedError
    from tttembed_rag.fitting.recipe import Recipe as Recipe
    from tttembed_rag.gate.fit import fit as fit
    from tttembed_rag.gate.tuning import tune as tune
    from tttembed_rag.judges.contract import Judge as Judge
    from tttembed_rag.judges.cross_encoder import CrossEncoderJudge as CrossEncoderJudge
    from tttembed_rag.judges.examination import check_judge as check_judge
    from tttembed_rag.judges.http import HttpJudge as HttpJudge
    from tttembed_rag.judges.rubric import RubricJudge as RubricJudge
    from tttembed_rag.judges.specs import open_judge as open_judge
    from tttembed_rag.judging.running import judge_all as judge_all
    from tttembed_rag.judging.spending import Budget as Budget
    from tttembed_rag.judging.spending import Price as Price
    from tttembed_rag.offsets.evidence import Evidence as Evidence
    from tttembed_rag.offsets.offset import Offset as Offset
    from tttembed_rag.offsets.offsets import Offsets as Offsets
    from tttembed_rag.rewards.events import Event as Event
    from tttembed_rag.rewards.events import Feedback as Feedback
    from tttembed_rag.rewards.rewards import Rewards as Rewards
    from tttembed_rag.rewards.scales import Scale as Scale
    from tttembed_rag.serving.context import context as context
    from tttembed_rag.serving.live import LiveOffsets as LiveOffsets
    from tttembed_rag.serving.log import Known as Known
    from tttembed_rag.serving.steering import Steering as Steering
    from tttembed_rag.serving.twopass import TwoPass as TwoPass

__version__ = "0.1.0"

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.serving.log": ["Known"],
            "tttembed_rag.capture.rewardlog": ["RewardLog"],
            "tttembed_rag.capture.textvectors": ["TextVectors"],
            "tttembed_rag.errors": ["InputError", "JudgeError", "TTTEmbedError"],
            "tttembed_rag.fitting.recipe": ["Recipe"],
            "tttembed_rag.gate.fit": ["fit"],
            "tttembed_rag.gate.tuning": ["tune"],
            "tttembed_rag.judges.contract": ["Judge"],
            "tttembed_rag.judges.cross_encoder": ["CrossEncoderJudge"],
            "tttembed_rag.judges.examination": ["check_judge"],
            "tttembed_rag.judges.http": ["HttpJudge"],
            "tttembed_rag.judges.rubric": ["RubricJudge"],
            "tttembed_rag.judges.specs": ["open_judge"],
            "tttembed_rag.judging.running": ["judge_all"],
            "tttembed_rag.judging.spending": ["Budget", "Price"],
            "tttembed_rag.capture.learned": ["Learned"],
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
