"""Words of any script: what is one, and what a text in another script is worth."""

import numpy as np
import pytest

from tttembed_rag.offsets.rescorer import Vocabulary
from tttembed_rag.vectors.bm25 import Keywords, script_of, words


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("readCSVFile read_csv Größe", ["read", "csvfile", "read", "csv", "grösse"]),
        ("Wie hoch ist der Mont-Blanc?", ["wie", "hoch", "ist", "der", "mont", "blanc"]),
        ("¿Cuántos años?", ["cuántos", "años"]),
        ("Сколько лет Москве?", ["сколько", "лет", "москве"]),
        ("كَمْ عُمْرُ الْمَدِينَةِ؟", ["كم", "عمر", "المدينة"]),
        ("मुझे कितना भुगतान करना है?", ["मुझे", "कितना", "भुगतान", "करना", "है"]),
        ("北京有多大?", ["北", "京", "有", "多", "大"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー"]),
        ("İstanbul ISPARTA \u0131şik", ["istanbul", "isparta", "işik"]),
        ("naïve nai\u0308ve", ["naïve", "naïve"]),
        ("שָׁלוֹם", ["שלום"]),
    ],
    ids=["names", "de", "es", "ru", "ar", "hi", "zh", "ja", "tr", "accents", "he"],
)
def test_words_of_a_script(text, cut):
    assert words(text) == cut


@pytest.mark.parametrize("query", ["İSTANBUL", "istanbul", "الْمَدِينَةِ", "المدينة", "भुगतान"])
def test_a_word_is_found_however_it_is_written(query):
    """With and without the marks that writers leave out, in either case."""
    texts = ["an English text", "İstanbul'da hava", "هذه المدينة كبيرة", "कितना भुगतान करना है"]
    scores = Keywords.of(texts).scores(query)

    assert np.count_nonzero(scores) == 1
    assert texts[int(scores.argmax())] != texts[0]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Paris 1998", "LATIN"),
        ("в 1998", "CYRILLIC"),
        ("東京タワーは", "CJK"),
        ("北京 NFL 有多大", "CJK"),
        ("1998", ""),
        ("", ""),
    ],
)
def test_the_script_of_a_text(text, script):
    assert script_of(words(text)) == script


def test_words_do_not_crowd_out_what_is_written_in_another_script():
    """It shares no words with the query, good or not, and has what the better ones of the query's own script have."""
    texts = ["北京有多大", "上海很大", "长城很长", "Beijing is large", "1998"]
    overlaps, lengths = Vocabulary.of(texts).overlap("北京多大?", texts)
    alone, _ = Vocabulary.of(texts).overlap("北京多大?", [*texts[:3], texts[4]])

    assert overlaps[0] > overlaps[3] > np.median(alone)
    assert overlaps[3] == np.quantile(alone, 0.75)
    assert lengths.tolist()[:3] == [5, 4, 4]


def test_words_of_one_script_are_compared_as_they_are():
    texts = ["a red fox", "no such word", "1998"]
    overlaps, lengths = Vocabulary.of(texts).overlap("red fox", texts)

    assert overlaps[0] > 0
    assert overlaps[1:].tolist() == [0.0, 0.0]
    assert lengths.tolist() == [3, 3, 1]
