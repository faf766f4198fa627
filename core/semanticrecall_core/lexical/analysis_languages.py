"""Which language a message is in, as far as stemming needs to know.

A word in a script of its own (Cyrillic, Greek, Arabic...) is stemmed by its script, whatever is
around it. For Latin script function words decide: a word that k languages share gives each 1/k. It
takes some microseconds and can be wrong without harm: a query is read in every language that its
partition has seen, so both meet in the same stem.
"""

# ruff: noqa: RUF001 words of many languages
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum


class Language(IntEnum):
    """What the words of a message in Latin script were stemmed in. Numbers are stored."""

    NONE = 0
    ENGLISH = 1
    FRENCH = 2
    GERMAN = 3
    SPANISH = 4
    ITALIAN = 5
    PORTUGUESE = 6
    DUTCH = 7
    SWEDISH = 8
    DANISH = 9
    NORWEGIAN = 10
    FINNISH = 11
    TURKISH = 12
    POLISH = 13
    CZECH = 14
    ROMANIAN = 15
    HUNGARIAN = 16
    INDONESIAN = 17


# What is assumed where no word tells: see docs/decisions/0018-text-analysis.md.
ASSUMED = Language.ENGLISH
# Words looked at; a longer message has told by then.
WORDS_MAX = 48
# Beside a word of the assumed language one word of another tells too little.
TELLING_WORDS_MIN = 2

_FUNCTION_WORDS: dict[Language, str] = {
    Language.ENGLISH: (
        "the a an and or but if of to in on at for from with by about as is are was were be been"
        " am"
        " i i'm i've i'll i'd you you're he she it it's we they me my your his her our their them"
        " this that that's there these those what where when who why how which do does did don't"
        " didn't have has had can can't could will would should not no yes so just very too also"
        " than then up out all some any more your's let's what's isn't wasn't one get got like"
        " she'd he'd they'll we'll see take good thanks thank hey hi wow yeah yes great nice love"
        " know think time day today tomorrow bye sure really here now new come go going been"
    ),
    Language.FRENCH: (
        "le la les un une des du de d l et ou mais si à au aux en dans sur sous pour par avec"
        " sans"
        " chez je j'ai j tu il elle on nous vous ils elles me te se moi toi lui leur mon ma mes"
        " ton"
        " ta tes son sa ses notre nos votre vos ce cet cette ces c'est ça cela est suis es sont"
        " était été être ai as a avons avez ont avait qui que quoi qu'est-ce quel quelle quels où"
        " quand comment pourquoi combien ne n n'est pas plus très aussi bien donc comme y tout"
        " j'aime d'accord qu'il qu'elle aujourd'hui fait"
        " c qu encore toujours jamais peut faut va vais après avant depuis deux oui non merci"
    ),
    Language.GERMAN: (
        "der die das den dem des ein eine einen einem einer und oder aber wenn ob von vom zu zum"
        " zur in im ins an am auf aus bei beim für mit nach über um unter vor ich du er sie es"
        " wir"
        " ihr mich dich mir dir uns euch mein meine meinen meinem meiner dein deine deinen sein"
        " seine ihre unser ist bin bist sind war waren wird werden wurde habe hast hat haben"
        " hatte"
        " kann kannst können muss will wollen was wer wie wo wann warum welche welcher welches"
        " nicht kein keine ja nein auch noch schon nur sehr so dann doch mal dass als heute"
        " wieder immer nie zwei danke bitte morgen gestern jetzt hier gibt damit unsere unserem"
    ),
    Language.SPANISH: (
        "el la los las un una unos unas y e o pero si de del a al en con por para sin sobre desde"
        " hasta yo tú él ella nosotros ellos me te se nos lo le les mi mis tu tus su sus nuestro"
        " nuestra este esta esto ese esa eso estos es soy eres son era fue ser estoy está están"
        " estaba he has ha hemos han había hay qué que quién cómo cuándo dónde cuál cuánto por"
        " porque no sí muy más también como cuando donde todo tengo tiene"
        " vamos voy va otra otro siempre nunca antes después dos gracias hoy ayer mañana ahora"
        " aquí"
    ),
    Language.ITALIAN: (
        "il lo la i gli le un uno una e o ma se di del dello della dei degli delle a al alla ai"
        " in"
        " nel nella con su sul sulla per da dal dalla tra fra io tu lui lei noi voi loro mi ti ci"
        " vi si mio mia miei tuo tua suo sua nostro questo questa quello quella è sono sei siamo"
        " era stato essere ho hai ha abbiamo hanno aveva c'è che chi cosa come dove quando perché"
        " quale quanto non sì molto più anche già quindi poi tutto ed dell l'ho"
        " l d all dall nell sull quest quell ancora sempre mai prima dopo due grazie oggi ieri le"
        " alle"
        " dalle nelle stiamo stato fatto va può bisogna"
    ),
    Language.PORTUGUESE: (
        "o a os as um uma uns umas e ou mas se de do da dos das em no na nos nas ao à aos com por"
        " pelo pela para pra sem sobre até eu tu você ele ela nós vocês eles elas me te lhe meu"
        " minha meus minhas teu tua seu sua nosso nossa este esta isto esse essa isso aquele é"
        " sou"
        " és são era foi ser estou está estão estava tenho tem têm tinha há que quem como quando"
        " onde qual quanto porque não sim muito mais também já então tudo foram"
        " ainda sempre nunca antes depois dois duas obrigado hoje ontem amanhã agora aqui outra"
        " vai dele dela"
    ),
    Language.DUTCH: (
        "de het een en of maar als dat van voor met aan bij naar uit op in om over onder te tot"
        " door ik jij je hij zij ze wij we jullie mij me jou hem haar ons mijn jouw zijn hun dit"
        " deze die is ben bent was waren wordt worden heb hebt heeft hebben had kan kun kunnen"
        " moet"
        " wil wat wie hoe waar wanneer waarom welke niet geen ja nee ook nog al heel erg zo dan"
        " er"
        " wel toch eens vandaag"
        " onze ons weer alle elke tegen twee drie altijd nooit dank morgen gisteren nu hier staat"
        " staan worden willen"
    ),
    Language.SWEDISH: (
        "en ett den det de och eller men om att av till från för med på i hos under över jag du"
        " han hon vi ni mig dig sig oss min mitt mina din ditt dina sin sitt vår detta denna är"
        " var"
        " vara blev blir har hade kan kunde ska skulle vill vad vem hur när var varför vilken"
        " inte"
        " ingen ja nej också bara mycket så sedan som här där"
        " igen alltid aldrig två tack idag imorgon igår nu måste vill mycket ska"
    ),
    Language.DANISH: (
        "en et den det de og eller men om at af til fra for med på i hos under over jeg du han"
        " hun"
        " vi mig dig sig os min mit mine din dit dine sin vores dette denne er var være blev"
        " bliver"
        " har havde kan kunne skal skulle vil hvad hvem hvor hvordan hvornår hvorfor hvilken ikke"
        " ingen ja nej også kun meget så som her der hedder"
        " igen altid aldrig to tak morgen igår nu må noget gerne"
    ),
    Language.NORWEGIAN: (
        "en ei et den det de og eller men om å at av til fra for med på i hos under over jeg du"
        " han"
        " hun vi dere meg deg seg oss min mitt mine din ditt dine sin vår dette denne er var være"
        " ble blir har hadde kan kunne skal skulle vil hva hvem hvor hvordan når hvorfor hvilken"
        " ikke ingen ja nei også bare mye så som her der heter"
        " igjen alltid aldri to takk morgen nå må noe gjerne"
    ),
    Language.FINNISH: (
        "ja tai mutta jos että kun niin kuin on ei oli olen olet ovat ole olla minä sinä hän me"
        " te"
        " he mä sä minun sinun hänen meidän mun sun minulla sinulla mulla minua tämä se tuo nämä"
        " ne"
        " mikä mitä kuka missä milloin miten miksi mihin mistä en et emme eivät myös vain jo"
        " vielä"
        " nyt hyvin paljon sitten kanssa minulle joka"
        " taas ensi aina ennen jälkeen pitää voi haluan haluamme uusi uuteen kaksi kiitos tänään"
        " huomenna eilen"
        " täällä siellä vaan mun olisi ollut"
    ),
    Language.TURKISH: (
        "ve veya ama eğer ile için gibi kadar bir bu şu o ben sen biz siz onlar beni seni bana"
        " sana"
        " ona bize benim senin onun bizim var yok değil mi mı mu mü ne neden nasıl nerede nereye"
        " kim hangi kaç zaman çok daha en de da ki şey olarak oldu olan sonra önce evet hayır"
        " bugün dün yarın her hiç"
        " yine her iki teşekkürler şimdi burada orada biraz benimle gibi yüzünden artık"
    ),
    Language.POLISH: (
        "i oraz lub ale jeśli że do od z ze w we na po pod przez dla przy o u ja ty on ona ono my"
        " wy oni mnie mi ciebie ci jego jej nas nam mój moja moje twój twoja swój ten ta to te"
        " jest"
        " są był była było być jestem jesteś mam masz ma co kto gdzie kiedy jak dlaczego jaki"
        " jaka"
        " która nie tak też już bardzo się tylko bo czy"
        " znowu zawsze nigdy dwa dzięki dziś jutro wczoraj teraz tutaj mamy może będzie"
    ),
    Language.CZECH: (
        "a i nebo ale jestli že do od z ze v ve na po pod pro při o u s se já ty on ona my vy oni"
        " mě mi mně tě ti jeho její nás nám můj moje tvůj tvoje svůj ten ta to ty je jsou byl"
        " byla"
        " bylo být jsem jsi mám máš má co kdo kde kdy jak proč jaký jaká která ne ano také už"
        " velmi"
        " si jen protože jsme"
        " zase vždy nikdy dva dva děkuji dnes zítra včera teď tady máme může bude"
    ),
    Language.ROMANIAN: (
        "un o și sau dar dacă de la din în pe cu pentru fără despre până eu tu el ea noi voi ei"
        " ele"
        " mă te se ne vă îmi îți mi ți meu mea mei tău ta său sa lui acest această asta este sunt"
        " ești era fost fi am ai are avem au ce cine unde când cum cât nu da foarte mai și"
        " deja tot că să"
        " iar mereu niciodată doi mulțumesc azi mâine ieri acum aici vreau trebuie"
    ),
    Language.HUNGARIAN: (
        "a az egy és vagy de ha hogy is nem igen én te ő mi ti ők engem nekem neked neki velem ez"
        " ezt azt van vannak volt lesz vagyok vagy mit ki hol mikor hogyan miért melyik már még"
        " csak nagyon meg el be fel ki mert itt ott"
        " megint mindig soha két köszönöm ma holnap tegnap most kell lehet volna"
    ),
    Language.INDONESIAN: (
        "dan atau tapi tetapi kalau jika yang di ke dari untuk dengan pada oleh tentang saya aku"
        " kamu dia kami kita mereka ini itu adalah ada tidak bukan sudah belum akan bisa harus"
        " apa"
        " siapa mana dimana kapan bagaimana kenapa mengapa berapa juga sangat lebih nya ya hanya"
        " lagi selalu pernah dua terima kasih hari besok kemarin sekarang sini mau"
    ),
}

# A letter that is at home in few languages tells as much as a function word.
_LETTERS: dict[str, tuple[Language, ...]] = {
    "ß": (Language.GERMAN,),
    "ä": (Language.GERMAN, Language.SWEDISH, Language.FINNISH),
    "ö": (Language.GERMAN, Language.SWEDISH, Language.FINNISH, Language.TURKISH),
    "ü": (Language.GERMAN, Language.TURKISH),
    "ñ": (Language.SPANISH,),
    "ç": (Language.FRENCH, Language.PORTUGUESE, Language.TURKISH),
    "ê": (Language.FRENCH, Language.PORTUGUESE),
    "è": (Language.FRENCH, Language.ITALIAN),
    "é": (
        *(Language.FRENCH, Language.SPANISH, Language.PORTUGUESE, Language.CZECH),
        *(Language.HUNGARIAN,),
    ),
    "à": (Language.FRENCH, Language.ITALIAN, Language.PORTUGUESE),
    "ù": (Language.FRENCH, Language.ITALIAN),
    "ò": (Language.ITALIAN,),
    "á": (Language.SPANISH, Language.PORTUGUESE, Language.CZECH, Language.HUNGARIAN),
    "í": (Language.SPANISH, Language.PORTUGUESE, Language.CZECH, Language.HUNGARIAN),
    "ó": (Language.SPANISH, Language.PORTUGUESE, Language.POLISH, Language.HUNGARIAN),
    "ú": (Language.SPANISH, Language.PORTUGUESE, Language.CZECH, Language.HUNGARIAN),
    "œ": (Language.FRENCH,),
    "ã": (Language.PORTUGUESE,),
    "õ": (Language.PORTUGUESE,),
    "å": (Language.SWEDISH, Language.DANISH, Language.NORWEGIAN),
    "ø": (Language.DANISH, Language.NORWEGIAN),
    "æ": (Language.DANISH, Language.NORWEGIAN),
    "ı": (Language.TURKISH,),
    "ğ": (Language.TURKISH,),
    "ş": (Language.TURKISH,),
    "ł": (Language.POLISH,),
    "ą": (Language.POLISH,),
    "ę": (Language.POLISH,),
    "ś": (Language.POLISH,),
    "ě": (Language.CZECH,),
    "ř": (Language.CZECH,),
    "ů": (Language.CZECH,),
    "ț": (Language.ROMANIAN,),
    "ș": (Language.ROMANIAN,),
    "ă": (Language.ROMANIAN,),
    "ő": (Language.HUNGARIAN,),
    "ű": (Language.HUNGARIAN,),
}

_Votes = tuple[tuple[Language, float], ...]


def _votes() -> dict[str, _Votes]:
    of: dict[str, set[Language]] = {}
    for language, words in _FUNCTION_WORDS.items():
        for word in words.split():
            of.setdefault(word, set()).add(language)
    return {word: _shares(sorted(languages)) for word, languages in of.items()}


def _shares(languages: Iterable[Language]) -> _Votes:
    of = tuple(languages)
    return tuple((language, 1.0 / len(of)) for language in of)


_VOTES = _votes()
# Words that speak for the assumed language, and those that speak only for others.
_FOR = frozenset(word for word, votes in _VOTES.items() if ASSUMED in dict(votes))
_AGAINST = _VOTES.keys() - _FOR
# Finnish says with endings what others say with small words.
_FINNISH_ENDING = re.compile(
    "[a-zäö]{3}(?:ss[aä]|st[aä]|ll[aä]|lt[aä]|v[aä]t|mme|iin|uun|ään|aan)$"
)
_FINNISH_VOTES: _Votes = ((Language.FINNISH, 0.5),)
_LETTER_VOTES = {letter: _shares(languages) for letter, languages in _LETTERS.items()}


def is_function_word(word: str) -> bool:
    """Whether a case-folded word is a function word of one of the languages."""
    return word in _VOTES


def is_function_word_in(word: str, languages: Iterable[Language]) -> bool:
    """Whether a case-folded word is a function word of one of these languages."""
    of = dict(_VOTES.get(word, ()))
    return any(language in of for language in languages)


def language_of(words: Sequence[str]) -> Language:
    """The language of a message by its words.

    Args:
        words: case-folded, in Latin script, apostrophes as ': the first WORDS_MAX of a message.

    Returns:
        ASSUMED where nothing tells or where it is as likely as any other.
    """
    if _AGAINST.isdisjoint(words) and not _FOR.isdisjoint(words):
        return ASSUMED
    scores: dict[Language, float] = {}
    telling: dict[Language, int] = {}
    for word in words:
        for language, share in _VOTES.get(word) or _votes_by_spelling(word):
            scores[language] = scores.get(language, 0.0) + share
            telling[language] = telling.get(language, 0) + 1
    enough = TELLING_WORDS_MIN if ASSUMED in scores else 1
    known = [language for language in scores if telling[language] >= enough]
    best = max(known, key=lambda language: (scores[language], -language), default=ASSUMED)
    return ASSUMED if scores.get(ASSUMED, 0.0) >= scores.get(best, 0.0) else best


def _votes_by_spelling(word: str) -> _Votes:
    """What stands before an apostrophe, an ending, or the letter that the fewest languages"
    " have."""
    before, apostrophe, _ = word.partition("'")
    if apostrophe and before in _VOTES:
        return _VOTES[before]
    if _FINNISH_ENDING.search(word):
        return _FINNISH_VOTES
    if word.isascii():
        return ()
    return min(
        (_LETTER_VOTES[letter] for letter in word if letter in _LETTER_VOTES), key=len, default=()
    )
