"""Months in words: a query with "mai 2023" meets a message of that month, whatever its language.

The index counts each message's date as three terms (`date_terms`): a number for the month, and the
day and the year as numbers in a text are. A query's word for a month has the month's term as one of
its alternatives, so the names are needed for queries only.
"""

# ruff: noqa: RUF001 words of many languages
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .analysis_format import term_of
from .analysis_languages import Language
from .analysis_stems import stem

DAYS_CACHED = 8_192
_DAY_NS = 86_400_000_000_000

# January first; several forms of a month with "|".
_LATIN_MONTHS: dict[Language, str] = {
    Language.ENGLISH: (
        "january|jan february|feb march|mar april|apr may june|jun july|jul august|aug"
        " september|sep|sept october|oct november|nov december|dec"
    ),
    Language.FRENCH: (
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre"
    ),
    Language.GERMAN: (
        "januar|jänner februar märz april mai juni juli august september oktober november dezember"
    ),
    Language.SPANISH: (
        "enero febrero marzo abril mayo junio julio agosto septiembre|setiembre octubre noviembre"
        " diciembre"
    ),
    Language.ITALIAN: (
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre"
        " dicembre"
    ),
    Language.PORTUGUESE: (
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro"
    ),
    Language.DUTCH: (
        "januari februari maart april mei juni juli augustus september oktober november december"
    ),
    Language.SWEDISH: (
        "januari februari mars april maj juni juli augusti september oktober november december"
    ),
    Language.DANISH: (
        "januar februar marts april maj juni juli august september oktober november december"
    ),
    Language.NORWEGIAN: (
        "januar februar mars april mai juni juli august september oktober november desember"
    ),
    Language.FINNISH: (
        "tammikuu|tammikuussa|tammikuuta helmikuu|helmikuussa|helmikuuta"
        " maaliskuu|maaliskuussa|maaliskuuta huhtikuu|huhtikuussa|huhtikuuta"
        " toukokuu|toukokuussa|toukokuuta kesäkuu|kesäkuussa|kesäkuuta"
        " heinäkuu|heinäkuussa|heinäkuuta elokuu|elokuussa|elokuuta syyskuu|syyskuussa|syyskuuta"
        " lokakuu|lokakuussa|lokakuuta marraskuu|marraskuussa|marraskuuta"
        " joulukuu|joulukuussa|joulukuuta"
    ),
    Language.TURKISH: (
        "ocak|ocakta şubat|şubatta mart|martta nisan|nisanda mayıs|mayısta haziran|haziranda"
        " temmuz|temmuzda ağustos|ağustosta eylül|eylülde ekim|ekimde kasım|kasımda aralık|aralıkta"
    ),
    Language.POLISH: (
        "styczeń|stycznia|styczniu luty|lutego|lutym marzec|marca|marcu kwiecień|kwietnia|kwietniu"
        " maj|maja|maju czerwiec|czerwca|czerwcu lipiec|lipca|lipcu sierpień|sierpnia|sierpniu"
        " wrzesień|września|wrześniu październik|października|październiku"
        " listopad|listopada|listopadzie grudzień|grudnia|grudniu"
    ),
    Language.CZECH: (
        "leden|ledna|lednu únor|února|únoru březen|března|březnu duben|dubna|dubnu"
        " květen|května|květnu červen|června|červnu červenec|července|červenci"
        " srpen|srpna|srpnu září říjen|října|říjnu listopad|listopadu prosinec|prosince|prosinci"
    ),
    Language.ROMANIAN: (
        "ianuarie februarie martie aprilie mai iunie iulie august septembrie octombrie noiembrie"
        " decembrie"
    ),
    Language.HUNGARIAN: (
        "január|januárban február|februárban március|márciusban április|áprilisban május|májusban"
        " június|júniusban július|júliusban augusztus|augusztusban szeptember|szeptemberben"
        " október|októberben november|novemberben december|decemberben"
    ),
    Language.INDONESIAN: (
        "januari februari maret april mei juni juli agustus september oktober november desember"
    ),
}
_OTHER_MONTHS = (
    # Russian, Greek, Arabic (two sets of names).
    "январь|января|январе февраль|февраля|феврале март|марта|марте апрель|апреля|апреле"
    " май|мая|мае июнь|июня|июне июль|июля|июле август|августа|августе"
    " сентябрь|сентября|сентябре октябрь|октября|октябре ноябрь|ноября|ноябре"
    " декабрь|декабря|декабре",
    "ιανουάριος|ιανουαρίου|ιανουάριο φεβρουάριος|φεβρουαρίου|φεβρουάριο μάρτιος|μαρτίου|μάρτιο"
    " απρίλιος|απριλίου|απρίλιο μάιος|μαΐου|μάιο ιούνιος|ιουνίου|ιούνιο ιούλιος|ιουλίου|ιούλιο"
    " αύγουστος|αυγούστου|αύγουστο σεπτέμβριος|σεπτεμβρίου|σεπτέμβριο"
    " οκτώβριος|οκτωβρίου|οκτώβριο νοέμβριος|νοεμβρίου|νοέμβριο δεκέμβριος|δεκεμβρίου|δεκέμβριο",
    "يناير فبراير مارس ابريل|أبريل مايو يونيو يوليو اغسطس|أغسطس سبتمبر اكتوبر|أكتوبر نوفمبر ديسمبر",
    "كانون شباط اذار|آذار نيسان ايار|أيار حزيران تموز اب|آب ايلول|أيلول تشرين - -",
    # Thai is not taken apart into words; Hindi.
    "जनवरी फरवरी|फ़रवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर|सितम्बर अक्टूबर|अक्तूबर नवंबर|नवम्बर दिसंबर|दिसम्बर",
)
_HAN_MONTHS = "一月 二月 三月 四月 五月 六月 七月 八月 九月 十月 - -"


def month_term(month: int) -> int:
    """The term of a month, 1 to 12; no word of a text has it."""
    return term_of(f"\0month {month}")


def _stems() -> dict[tuple[Language, str], int]:
    out: dict[tuple[Language, str], int] = {}
    tables = [*_LATIN_MONTHS.items(), *((Language.NONE, names) for names in _OTHER_MONTHS)]
    for language, names in tables:
        for number, forms in enumerate(names.split(), 1):
            for form in forms.split("|"):
                out[language, stem(form.casefold(), language)] = number
    for number, name in enumerate(_HAN_MONTHS.split(), 1):
        out[Language.NONE, name] = number
    for number in range(1, 13):
        out[Language.NONE, f"{number}月"] = number
    out.pop((Language.NONE, "-"), None)
    return out


_MONTH_OF = _stems()


def month_of(stemmed: str, language: Language) -> int | None:
    """The month that a stem names, 1 to 12, or None.

    Args:
        language: NONE for what is not in Latin script.
    """
    return _MONTH_OF.get((language, stemmed))


def date_terms(times_ns: NDArray[np.int64] | Sequence[int]) -> list[tuple[int, ...]]:
    """What a message's date (UTC) adds to its terms: month, day of the month and year, once each.

    Args:
        times_ns: shape (n,). Since 1970, in UTC.
    """
    days = np.asarray(times_ns, dtype=np.int64) // _DAY_NS
    return [_terms_of_day(day) for day in days.tolist()]


@lru_cache(DAYS_CACHED)
def _terms_of_day(day: int) -> tuple[int, ...]:
    date = np.datetime64(day, "D").astype(object)
    return month_term(date.month), term_of(str(date.day)), term_of(str(date.year))
