"""The words and patterns by which wishes are read from marked text (see `wish_reader`)."""

import re

# Other words for values. Where no value of the catalog answers to any of a line, its words are not understood.
ALSO = """
horror scary scarier creepy slasher|comedy funny funnier humorous|romance romantic rom-com romcom love-story|
sci-fi science-fiction scifi
animation animated anime cartoon|documentary|musical|biography biopic biographical|family kids kid children|
history historical
thriller|war|crime|western|superhero super-hero|zombies zombie|vampires|noir|gore gory blood bloody splatter|
violence violent
swearing cursing profanity|drugs|torture|rape
nudity sex sex-scenes|subtitles subtitled dubbed|sequel remake reboot franchise prequel|jump-scares jumpscare|
sad-ending
french fr|spanish es|german de|italian it|korean ko|japanese ja|hindi hi|chinese zh|swedish sv|danish da|norwegian no
russian ru|polish pl|portuguese pt|turkish tr|british|african|foreign|black-and-white
"""
CODE = 2  # letters of a code of a language, which columns have and people do not write
FIRST_ASKED = "french"  # from here on, also what is asked for is told as not understood
NUMBERS = {"a": 1, "an": 1} | {
    word: n for n, word in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight"], 1)
}
DECADES = ["twenties", "thirties", "forties", "fifties", "sixties", "seventies", "eighties", "nineties"]

# The marked text: <v3> are values, <t3> is a title, <y1990-1999> are years, <n120:min> is an amount, <q> a quotation.
NOUN = (
    "(?:movie|film|flick|picture|title|stuff|one|thing|show|book|game|song|album|genre|section|shelf|element|"
    "scene|theme|content|vibe|category|plot|material|type|kind)s?"
)
_FILLER = (
    "(?:a|an|any|the|all|more|another|other|those|these|such|this|(?:kind|sort|type)s? of|anything|something|"
    "with|about|from|in|of|on|involving|featuring|starring|by|directed|related to|to do with|having|that's|"
    "that is|that are|whole|watching|seeing|to see|to watch|see|watch|me|us|new|old|modern|usual|typical|good|great|"
    f"remotely|even|yet|please|{NOUN})"
)
_ASKED_FILLER = (  # also between the words that ask and what they ask for
    r"(?:(?:older|newer|recent|more recent|classic|interesting|decent|nice|fun|that has|that have)\b|"
    r"(?:(?:early|mid|late) )?<y\d+-\d+>|<v\d+>[- ]friendly\b)"
)
EITHER = re.compile(r"\bn?or\b|/")  # in a list
THING = rf"<[vt]\d+>(?:[\s-]*<v\d+>)*(?:[\s-]{NOUN}\b)?"
_OR = r"(?:\s*,?\s*\bn?or\b|\s*&|\s*/|\s+and\b)\s*(?:no |any |a )?"
LIST = re.compile(
    rf"{THING}(?:(?:\s*,\s*{THING}){{1,30}}(?:{_OR}|\s*,\s*and ){THING}|"
    rf"(?:(?<=t\d>)\s*,\s*<t\d+>){{2,}}|(?:{_OR}{THING})*)"
)
_ADV = (
    "(?:really |actually |just |particularly |especially |exactly |that |much |so |very |a big |a huge |a |"
    "totally |ever |generally |necessarily )*"
)
_NEG = (
    "(?:do not|don't|dont|does not|doesn't|did not|didn't|didnt|would not|wouldn't|won't|will not|cannot|"
    "can not|can't|cant|couldn't|could not|never)"
)
_NOT = "(?:not|isn't|aren't|ain't|wasn't)"
_NO_THING = (  # what "no" and "nothing about" say besides wishes, as in "no worries"
    "(?:i|it|he|she|we|you|they|there|what|who|whom|my|your|our|his|her|its|him|me|us|them|th[a-z]+|means|always|"
    "longer|matter|way|worr(?:y|ies)|hurr(?:y|ies)|problems?|ideas?|clues?|preferences?|spoilers?|suggestions?|"
    "recommendations?|questions?|answers?|plans?|expectations?|limits?|restrictions?|limitations?|conditions?|rules?|"
    "reasons?|excuses?|regrets?|complaints?|objections?|doubts?|favou?rites?|options?|choices?|preconceptions?|"
    "words|chances|odds|troubles?|issues?|guess(?:es)?|opinions?|qualms|strings|specifics|details|needs|feelings?|"
    "surprises?|refunds?|lists?|bots?|winners?|friends|services|subscriptions|sites|links|ads|seconds|minutes|hours|days|weeks|months|years|times|"
    "people|anything|everything|something|particular|others|reviews|ratings|seasons|episodes|cheers|regards|perhaps|"
    "sometimes|loves?|likes?|wants?|needs?|enjoys?|prefers?)"
)
_THINGS = rf"(?!(?:{_FILLER}|{_NO_THING})\b)(?:[a-z-]+ )?(?!(?:{NOUN}|{_NO_THING})\b)[a-z]{{2,}}[^\Wsui\d_]s"
_PLAIN = rf"(?!(?:{_FILLER}|{_NO_THING})\b)[a-z]{{2,}}[^\Wsui\d_]s"
_MORE_THINGS = (
    rf"(?:(?:,? n?or (?:any |an? |no )?{_THINGS}){{1,9}}|(?:, {_PLAIN}){{0,8}},? (?:and|n?or) (?:any |no )?{_PLAIN})?"
)
_AGAINST = rf"""
(?<!have )(?<!has )(?<!had )(?<!there's )(?<!was )(?<!is )(?<!there )(?<!are )(?<!if )(?<!gave me )(?<!seen )\b
no(?! (?:that|
i|it|this|he|she|we)\b)(?: {_THINGS},? n?or)?|\bwithout|\bneither|\bnothing|\bnone|
\b(?!(?:did not|didn't|didnt) (?:watch|see)\b){_NEG} {_ADV}(?:want|
wanna|like|love|enjoy|care for|feel like|need|recommend|suggest|show|give|do|dig|include|pick|fancy|stand|bear|handle|
deal with|take|watch|see|stomach|tolerate|get into)|\b(?:rather|prefer)(?: to)? not(?: to)?|\b(?:hates?|hated|
dislikes?|disliked|despise|detest|loathe|avoid|avoiding|skip|exclude|excluding|leave out|rule out|stay away from|
keep away from|steer clear of|ban|ditch|minus|sans|drop|spare me|forget about|allergic to|remove|filter out|cut out|
pass on|hold the|do without)|
\b(?:tired of|sick of|bored of|bored with|bored by|fed up with|weary of|done with|had it with|over with|i'm over|
(?<=i'm )no fan of|so over|we're over|had my fill of)|\b(?:seen|had|watched) (?:too much|too many|enough)(?: of)?|
(?<!get )(?<!got )(?<!have )(?<!had )(?<!seen )\benough(?: of)?|\b(?:except|except for|other than|apart from|
aside from|besides)|\b(?:anything|everything|something|all) but|\bnon-?|(?<!why )(?<!if )(?<!or )(?<!favourite )
(?<!favorite )\b{_NOT}(?! (?:watch|
see)\b)(?: {_ADV}(?:into|in the mood for|interested in|keen on|crazy about|big on|feeling|fans? of|looking for|after|
up for|fond of|wild about|here for|much of a|one for))?|\bfree (?:of|from)|\bno thanks to|
\bmy least favou?rite (?:{NOUN} )?(?:is|are)
"""
_AGAINST_BEHIND = r"""
(?: (?:is|are|was|were|really|just|definitely|simply|so)|'s)* (?:out(?! (?:now|today|there|this|that|in|on|of|right|
yet)\b)(?!\?)|off limits|off the table|(?:isn't |aren't |wasn't |weren't |not )(?:really )?(?:for me|for us|my thing|
my cup of tea|my genre|an option|allowed)|a no[- ]go|a no|no[- ]gos?|(?:doesn't|don't|does not|do not) (?:work for|
do it for|appeal to|interest) me|bores? me|gives? me nightmares|scares? me|makes me (?:sick|cringe)|
gets? on my nerves|a hard pass|away from me|puts? me to sleep)\b|
[- ]free\b|,?(?: then)? (?:i'm|i am|count me) out\b(?=\W*$|[.,!])|(?:\? (?:no thanks|nope|nah)|: no)\b(?=\W*$)
"""
_DOUBTFUL = rf"""
\b(?:{_NOT}|nothing|no|without being|{_NEG} want(?: it| anything)?)(?: be| to be)? (?:too|so|very|overly|super|
particularly|terribly|all that|extremely|quite|especially)|\b(?:less|not a lot of|not much|not many|fewer|not so much|
light on|low on|easy on|not sure about|not sure i want|(?<!seen )(?<!had )(?<!watched )too (?:much|many))|\b(?:maybe|
perhaps|probably|ideally|preferably|if possible|hopefully),? (?:i'd |we'd )?(?:no|not|skip|nothing|without|avoid)
"""
_MOOD = (
    "(?:slow|slow-(?:paced|burn|burning)|fast|fast-paced|feel-?good|mind-(?:bending|blowing)|dark|bleak|gritty|tense|"
    "suspenseful|atmospheric|moody|uplifting|inspiring|inspirational|heart-?warming|co[sz]y|wholesome|relaxing|"
    "soothing|light-?hearted|sad|depressing|melanchol(?:y|ic)|emotional|touching|thought-provoking|philosophical|"
    "intense|gripping|disturbing|unsettling|weird|quirky|trippy|surreal|dreamy|whimsical|nostalgic|silly|cheesy|witty|"
    "twisted|edgy|artsy)"
)
_AGAIN = rf"""
\b{_NEG} mind|\b(?:ok|okay|fine|cool|good|alright) with|\b(?:open to|no problem with|nothing against|bring back|
add back|allow|(?<!n't )(?<!not )include|back to|put back|changed my mind (?:about|on)|(?:{_NEG}|
{_NOT}) {_ADV}(?:hate|dislike|opposed to|against)|never mind about|forget what i said about)
"""
_AGAIN_BEHIND = r"""
(?: (?:is|are|would be|sounds?|might be|can be|could be|works?)|'s)(?: actually| totally| also| now| perfectly|
 really| just| all)* (?:fine|ok|okay|good|great|cool|alright|all right|welcome|allowed|back|acceptable|nice|for me)\b|
 after all\b
"""
_ONLY = r"""
\b(?:don't|do not|dont|won't) (?:want|like|need|watch|feel like|give me) anything (?:but|except|other than)|
(?<!not )(?<!the )(?<!just )\b(?:only|exclusively|strictly|solely|nothing but|none but|nothing except|
nothing other than)
"""
_KIND = rf"(?:{NOUN}|actors?|actress(?:es)?|directors?|franchises?)"
_FAVOURITE = (
    r"(?:my|our) (?:(?:all[ -]?time|absolute|very|current|personal|two|three|other) )?(?:fav(?:e|ou?rite)?|go-to|top)s?"
)
_MOSTLY = "(?:mostly|mainly|usually|generally|typically)"
_HABIT = rf"{_MOSTLY} (?:watch|stick to|go for|end up with)|watch (?:{_MOSTLY}|a lot of|lots of|plenty of)"
_ASKED = rf"""
\b(?:want|wants|wanna|(?<!do you )(?<!did you )(?:likes?|liked|loves?|loved|adores?|enjoy|enjoyed)|need|prefer|give|
show|recommend|suggest|
looking for|in the mood for|craving|fans? of|into|how about|what about|for|do|in|with|about|where|full of|featuring|
involving|make it|go for|feel like|try|maybe|perhaps|but|rather (?:watch|see|have)|{_HABIT}|
(?:i'm|kinda|kind of|we're) feeling|{_FAVOURITE} (?:{_KIND} )?(?:is|are|would be|has to be)(?: probably| definitely)?|
(?:{NOUN}|(?:some|any)thing|looking|recommendations?|suggestions?|ideas?) for (?:my|our)|
(?:to|can|could|we'll) (?:watch|see|enjoy)(?: it| together| tonight)* with (?:my|our)(?: [a-z0-9']+){{0,2}}|
(?<!what )(?<!was )(?<!were )(?:some|any|an?)(?: {_MOOD},| [a-z-]+|
 <y\d+-\d+>){{0,2}})|
^\W*(?:early |late |mid |<y\d+-\d+> )*(?:(?:actually|ok|okay|well|hmm|yes|sure|then|no(?=,)|hi|hello|hey|
(?:mostly|mainly)(?: just)?)\W+)*
"""
HABIT = re.compile(_HABIT)
TURNED = re.compile(
    rf"(?:\b(?:{_NEG}|{_NOT}|hardly|used to|shouldn't|why|people who|those who|if you|than|too [a-z]+) "
    rf"{_ADV}(?:get |grow )?|\bthe )$"
)  # before a decisive word: "don't hate", "why not"
_END = (
    r"\s*(?:$|[.,;:!?)(\"”—–-]|(?:please|pls|thanks?|thank|tonight|today|though|tho|at all|this time|for|again|anymore|"
    r"any more|whatsoever|but|and|or|because|since|as|i|i'm|i'd|we|just|only|either|now|ever|then|ok|okay|lately|so|"
    r"nor|right now|instead|rather|yet|suggestions|recommendations|in it|in there|any (?:ideas|tips|other|good|recs)|"
    r"what|surprise me|how|which|can you|could you|got any)\b)"
)
END = re.compile(_END)
ASKED_END = re.compile(  # "horror emotional films"
    rf"\s+(?:<t|(?:[a-z-]+ {NOUN}|out (?:now|today|there)|that|which|where|you|to (?:watch|see|try|check out|enjoy)|"
    r"too(?! (?:much|many|little|long|often|scary)\b)|a lot(?! less)|"
    r"this (?:morning|afternoon|evening|weekend)|also|recently|later|etc|every now|something|"
    r"based on|do you|have you|any|whatever|yeah|rn|lol|haha)\b)"
)
MORE = re.compile(  # behind a list of what is asked for: "action, comedy, thriller"
    rf"(?:\s*,\s*{THING}){{1,30}}(?=\s*(?:$|[.;!?)]|,? (?:but )?no |and\b|(?:,? ?etc|please|thanks)\b\W*$))"
)
# The beginning of a clause.
_ANEW = rf"(?:^\W*|, ?|\b(?:and|so|(?<!one )but|maybe|perhaps|think|guess) )(?:{_FILLER}\s+)*$"
_I_AM = (
    r"(?:^\W*|\b(?:i'm|im|i am|we're|we are|i've been|am|as) )(?P<not>not |never )?"
    r"(?:(?:really|definitely|also|such|much|more|kind|an?|of|in|the|huge|big|massive|total|real|true|die-hard) )*$"
)
WELCOME = [  # what the words before and behind it ask for together, or exclude: with <not>
    (re.compile(before), re.compile(behind))
    for before, behind in (
        (_ANEW, rf"(?:'s| is| are| has to be)(?: one of| all| both| definitely)* {_FAVOURITE}(?: {_KIND})?(?={_END})"),
        (_ANEW, r" would (?:also )?be (?:great|good|nice|awesome|perfect|cool|lovely|fun)\b(?! (?:if|to)\b)"),
        (_I_AM, rf" (?:{NOUN} )?(?:kind of )?(?:fan|lover|buff|nerd|geek|junkie|person|mood|phase)\b"),
        (r"\b(?:for|it's|its|it is)(?: an?| our)? ?$", r" (?:movie |film )?(?:night|evening)\b"),
    )
]
ATTACHED = re.compile(
    r"\s*(?:(?:unless|like|with|without|shorter|longer|older|newer|under|over|made|released|starring|by|about|"
    r"before|after|if|when|from|of(?! (?:my|our)\b)|set)\b|in\b(?! (?:it|there)\b)|<y)"
)
_YEAR = r"(?:(?:the|year|years|early|mid|late)[\s-]+)*<y\d+-\d+>"
_MADE = (
    "(?:(?:that's|that is|that was|which is|it|anything|something|to be|be|made|released|movies|films|are|is|"
    "was|were|from|comes?|came|out|any|much|want|like|need|watch|see|show me|give me|recommend|older than|"
    "longer than) )*"
)
_NOR = rf"(?P<nor>\b(?:no|not|nothing|none|{_NEG}) {_MADE})?"
_NOT_YEARS = (
    rf"\b(?:no|not|nothing|none|without|avoid|skip|anything but|except|tired of|sick of|enough of|"
    rf"hate) (?:{_FILLER} )*+"
)
LIMITS = [  # kind, and the words
    ("in",
     rf"\b(?:between|from) (?:about )?(?P<a>{_YEAR})\s*(?:and|or|to|until|till|through|up to|-|–|"
     rf"&)\s*(?P<b>{_YEAR})"),
    ("in", r"(?P<a><y\d+-\d+>)\s*(?:to|-|–|through)\s*(?P<b><y\d+-\d+>)"),
    ("since",
     rf"\b(?:since|from|starting(?: from| in)?) (?P<b>{_YEAR})\s*(?:on|onwards?|(?:and|or) (?:later|newer|"
     rf"up)|upwards?|\+)"),
    ("since", rf"(?P<b>{_YEAR})\s*(?:\+|(?:or|and) (?:newer|later|up|above|more recent|onwards?)\b|onwards?\b)"),
    ("until", rf"(?P<b>{_YEAR})\s*(?:or|and) (?:older|earlier|before)\b"),
    ("until",
     rf"\b(?:no|not) (?:later|newer|more recent) than (?P<b>{_YEAR})|\b(?:until|till|up to|"
     rf"up until) (?P<c>{_YEAR})"),
    ("since", rf"\b(?:no|not) (?:older|earlier) than (?P<b>{_YEAR})"),
    ("before", rf"{_NOR}\b(?:before|prior to|older than|earlier than|pre)[\s-]+(?P<b>{_YEAR})"),
    ("after",
     rf"{_NOR}\b(?:after|newer than|later than|more recent than|younger than|post|past)[\s-]+(?P<b>{_YEAR})"),
    ("since", rf"{_NOR}\bsince (?P<b>{_YEAR})"),
    ("not", rf"{_NOT_YEARS}(?P<b><y\d+-\d+>)(?: {NOUN})?"),
    ("in", rf"\b(?:from|made in|released in|out of|shot in|produced in) (?P<b>{_YEAR})(?: {NOUN})?"),
    ("in", rf"(?P<b><y\d+-\d+>) (?:<v\d+>\s?)*{NOUN}\b"),
    ("in", rf"\b(?:ideally|preferably|hopefully),?(?: made| from| in| the)* (?P<b>{_YEAR})"),
    ("in",
     rf"\b(?:a|an|any|some|good|great) (?P<b><y\d+-\d+>) <v\d+>|"
     rf"^\W*(?P<c>(?:early |mid |late )?<y\d+-\d+>)(?: <v\d+>)+(?={_END})"),
    ("in", rf"(?:<v\d+> of|{NOUN} (?:of|in)) (?P<b>{_YEAR})"),
    ("in",
     r"^\W*(?:(?:only|actually|ok|okay|no|just|then|hmm|in|the)\W+)*(?P<b><y\d+-\d+>)(?: please| only|"
     r" then)?\W*$"),
]  # fmt: skip
_MOST = (
    "(?:shorter than|less than|fewer than|under|below|at most|a maximum of|max|maximum|up to|within|"
    "no longer than|not longer than|no more than|not more than|not over)"
)
_LEAST = (
    "(?:longer than|more than|over|above|at least|a minimum of|min|minimum|no shorter than|not shorter than|"
    "no less than)"
)
AMOUNTS = [
    ("most",
     rf"{_NOR}\b{_MOST} (?P<n><n[\d.]+:\w+>)|(?P<m><n[\d.]+:\w+>) (?:or (?:less|shorter|under|fewer)|max|"
     rf"maximum|tops|at most)\b"),
    ("least",
     rf"{_NOR}\b{_LEAST} (?P<n><n[\d.]+:\w+>)|(?P<m><n[\d.]+:\w+>) (?:or (?:more|longer|over)|min|minimum|"
     rf"at least|plus)\b"),
]  # fmt: skip
NO_AMOUNT = re.compile(  # amounts of something else than the items
    r"\b(?:spent|spend|took|takes|looking|searching|(?:a|per|every) (?:day|week|month|year)|"
    r"ago|asleep|sleep|waited|waiting)\b"
)
LOOSE = re.compile(
    r"\b(?:ideally|preferably|hopefully|prefer|preferred|maybe|perhaps|possibly|around|about|circa|roughly|"
    r"like (?:the )?(?=<y)|similar|"
    r"feel|style|vibes?|inspired|or so|"
    r"favou?rites?|if possible|would be nice|kind of|mostly|usually|aesthetics?|nostalgia|remind|bonus)\b"
)
NO_LIMIT = re.compile(  # years of something else than the items
    r"\b(?:(?:it's|it is|that's|that was) an?|it was|the best .* was|since <y\d+-\d+>,? (?:i|we)|"
    r"born|saw|seen|watched|moved|grew up|remember|married|graduated|kid|child|have been|been|i was|we were|"
    r"lived|living|theatres?|"
    r"theaters?|cinemas?|soundtracks?|music|set in|takes? place|set during|about the)\b"
)
RESET = re.compile(
    r"\b(?:start over|start again|forget (?:it|that|all that|everything)|something (?:else|completely different|"
    r"different)|"
    r"changed my mind(?! about| on)|on second thought)\b"
)
RESET_ALL = re.compile(r"\bforget (?:what|everything|all)(?: that)? (?:i|i've|i have) (?:said|told)\b(?! about)")
FREE = [  # limits that are taken back
    ("year", re.compile(r"\bany (?:year|decade|era)s?\b|\b(?:year|decade|age|era) (?:doesn't|does not) matter|"
                        r"\b(?:don't|do not) (?:care|mind) (?:about the year|how old)|\bno matter how old\b")),
    ("amount", re.compile(r"\bany (?:length|duration)\b|\b(?:length|duration|runtime) (?:doesn't|does not) matter|"
                          r"\b(?:don't|do not) (?:care|mind) how long|\bno matter how long\b")),
]  # fmt: skip
PARTS = re.compile(r"[!;\n]+|\?(?! (?:no thanks|nope|nah)\b)|\.(?!\d)")  # between the parts of a message
# What is compared with a title that was named, or with nothing.
_MORE = "(?:newer|older|more recent|shorter|longer)"
_LIKE_TITLES = (
    rf"(?:^\W*|\b(?:{NOUN}|(?:some|any)thing|more|just|exactly|bit|want) )like <t\d+>"
    r"(?:(?:,? and|,? or|,) <t\d+>)*,? but "
)
MODIFIED = re.compile(  # what is asked of something else than the title: "like Alien, but funny"
    rf"{_LIKE_TITLES}(?:(?:more|much|even|also|really|very|with|about|set|in|on|some|an?|the|of|a (?:lot|bit|little)|"
    rf"it's|featuring|starring|by|actually|make it|{NOUN}) )*$"
)
RELATIVE = re.compile(
    rf"{_NOR}(?P<is_wish>\b(?:some|any)thing(?: a bit| a little| much| even| that's| that is)* |^\W*(?={_MORE}{_END}))?"
    rf"(?P<but><t\d+>,? but (?:(?:a bit|a little|much|even|make it|something) )*(?={_MORE}{_END}))?"
    rf"\b(?P<word>{_MORE})\b(?: than (?P<than><t\d+>|(?:that|those|it|this)\b)|(?! than))"
)
SAME = re.compile(
    r"\b(?:by|with|from|of|in|starring|featuring) (?:the same (?P<column>[a-z]+)|"
    r"that (?P<person>director|author|artist|writer|actor|actress))\b"
)
COMPARED = {"short": "shorter", "long": "longer", "old": "older"}  # the others are newer
_RATHER = "(?:rather|fairly|pretty|quite|slightly|relatively|somewhat|reasonably|preferably|ideally|hopefully)"
_LIKE = "(?:want|like|love|enjoy|need|watch|care for|show me|give me|recommend)"
_DEGREE = rf"(?:{_RATHER}|too|so|very|overly|super|(?:all )?that|an?|any|anything|be|it|good|great|nice|<v\d+>)"
THIRDS = re.compile(  # such as "rather short", "not too long", "a recent comedy"
    rf"(?:(?P<nor>(?<!i'm )(?<!am )(?<!he's )\b(?:no(?! longer)|nothing|isn't|shouldn't|not|{_NEG} {_LIKE}))|\b"
    rf"(?:(?<!thing )an?|some|any|prefer|{_LIKE}|for(?= an? )|(?:make|keep) it|(?P<is_thing>(?:some|any)thing))|"
    rf"(?:^\W*|, ?|\b(?:and|but|be|maybe) |{NOUN} |<v\d+> )\b{_RATHER}) (?:{_DEGREE} ){{0,4}}"
    rf"(?P<word>(?(is_thing)(?!{_MORE}))(?(nor)|(?<!too )(?<!so )(?<!overly ))"
    rf"(?:{_MORE}|short|long|old|recent|(?:more )?modern|new(?<=ly new)))(?= <v\d+>| {NOUN}\b(?! (?:is|are)\b)|{_END})"
)
TAKEN_BACK = re.compile(
    r"\s+but (?:i|we) (?:love|like|enjoy|do not mind|don't mind)\b"
)  # "she hates horror but I love it"
BESIDES = re.compile(r"(?:besides|apart from|aside from|other than)")
ALSO_LIKED = re.compile(r"\s*,?\s+(?:i|we)\b")  # "besides horror, I also like drama"
MY_ONLY = re.compile(r"\s+(?:i|we|that|which|who)\b")  # behind a list: "the only comedy that I like"
THAT_ONE = re.compile(r"\bnot (?:that one|this one|those|these)\b|\bnone of (?:those|these)\b")
AGE = re.compile(r"\bfor (?:an? |my |our |the |two )?[2-9][- ]years?[- ]olds?\b(?! [a-z])", re.IGNORECASE)
NO_NAME = re.compile(rf"^(?:in|to|at)\b|^[a-z]\w* {NOUN}\b")  # before and behind what may be a surname
NAMED = re.compile(r"\b(?:[Ww]ith|[Ss]tarring|[Bb]y|[Ff]eaturing)((?: (?:[A-Z]\.)+| [A-Z][\w'’-]+){2,3})")
UNKNOWN = re.compile(  # "no animals", "nothing with a clown", where these are no value
    rf"(?:(?:^\W*|[,:&(–-] ?|<[vt]\d+> |\b(?:and|but|so|or|please|with|want|prefer|need|{NOUN}) )no(?: more)?|"
    rf"(?:^\W*|, ?|<[vt]\d+> |\b(?:but|and|(?:some|any)thing|{NOUN}) )without(?: any)?|"
    rf"\b(?:no|without|nothing with) <v\d+>(?: {NOUN})?(?:, <v\d+>)*"
    rf"(?:,? n?or(?: any| no)?|,? and(?= {_PLAIN}{_END})|"
    rf",(?= {_PLAIN}(?:, {_PLAIN}){{0,8}},? (?:and|n?or) {_PLAIN}{_END}))|"
    rf"\b{_NEG} {_LIKE} (?:any ?thing|(?:any |a )?{NOUN}) (?:with|about|involving|featuring)(?: any)?) "
    rf"(?P<many>{_THINGS}{_MORE_THINGS})(?={_END})|"
    rf"(?<!know )\bnothing (?:with|about|involving|featuring) (?:any |an? )?"
    rf"(?P<one>(?!(?:{NOUN}|{_NO_THING})\b)[a-z]+{_MORE_THINGS})(?={_END})"
)
UNKNOWN_AND = re.compile(r",? (?:and|n?or) (?:any |an? |no )?|, ")  # between those

_SO = (
    "(?:really|very|so|too|super|rather|fairly|pretty|quite|slightly|a bit|a little|more|most|that's|that is|good|nice)"
)
_MOODS = rf"{_MOOD}(?:(?:, | and |, and | but | ){_MOOD}){{0,3}}"
MOODS = re.compile(  # "a slow film", "something dark", "nothing too sad", where no value says it
    rf"(?:^\W*|[,:] ?|\b(?:an?|some|any|no|only|more|other|another|my|for|of|and|but|{_LIKE}|prefer|{_RATHER}) )"
    rf"(?:{_SO} |<[yv][\d-]+> ){{0,4}}(?P<noun>{_MOODS})(?= (?:<v\d+>|{NOUN}\b)"
    r"(?! (?:is|are|was|were|isn't|aren't|ma[dk]es?|bores?|bored)\b))|"
    rf"\b(?:some|any|no)thing (?:else )?(?:(?:not )?{_SO} )*(?P<thing>{_MOODS})(?={_END}|"
    rf"\s+(?:in|with|from|about|set|by)\b)|"
    rf"<[vt]\d+>,? but (?:not )?(?:{_SO} )*(?P<but>{_MOODS})(?={_END})"
)
MOOD = re.compile(rf"{_MOOD}(?![\w-])")
NO_MOOD = re.compile(
    r"\b(?:(?:is|are)(?! there)|was|were|been|be|isn't|wasn't|it's|that's|he's|she's|seems?|seemed|looks?|looked|"
    r"(?:i'm|am)(?! (?:looking|in the|after|up for|craving))|saw|seen|watched|finished|liked|loved|"
    r"enjoyed|hated|had|found|thought|such|after|than|why|mind(?!-)|tired of|enough|anything but)\b"
)  # before what says how a film is, and no wish
CENTURY = re.compile(r"\b(?:from|(?:made|released) in) (?:this|the 21st) century\b", re.IGNORECASE)
TITLE_CASE = re.compile(
    r"(?<=[\w,:] )(?:No|Not|Without|Nothing|Anything|Everything|Never|Enough|Only|Except|Free|Tired|Hate|Avoid|Skip)"
    r"(?: (?:of|a|an|the|to|for|but|and|in|with|[A-Z][\w'’-]*))* [A-Z][\w'’-]*"
)
AMOUNT = re.compile(
    r"(?<![\w.,])(?P<n>\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?|(?:an?|one|two|three|four|five)(?=[\s-]))"
    r"(?P<half>(?: and)? a half)?[\s-]?(?P<unit>[a-z]+)\b"
    r"(?P<later> and a half)?(?:,? ?(?:and )?(?P<m>\d+) ?(?:m|min|mins|minutes)?\b)?(?: long)?"
)


def _before(words: str) -> re.Pattern[str]:
    """Return the pattern of deciding words before a list, at the end of what stands there."""
    filler = rf"(?:{_FILLER}\b|{_ASKED_FILLER})" if words == _ASKED else rf"{_FILLER}\b"
    return re.compile(rf"(?P<cue>{words.replace(chr(10), '')})(?:\s*{filler})*+\s*$")


AGAINST = re.compile(_AGAINST.replace("\n", ""))
BEFORE: list[tuple[str, re.Pattern[str]]] = [
    (kind, _before(words))
    for kind, words in (
        ("unsure", _DOUBTFUL),
        ("again", _AGAIN),
        ("only", _ONLY),
        ("against", _AGAINST),
        ("asked", _ASKED),
    )
]
BEHIND = [
    (kind, re.compile(words.replace("\n", "")))
    for kind, words in (
        ("again", _AGAIN_BEHIND),
        ("against", _AGAINST_BEHIND),
        ("against", rf" (?:is|are) my least favou?rites?(?: {_KIND})?(?={_END})"),
        ("unsure", r" (?:isn't|aren't|is not|are not) (?:really )?(?:my|our) (?:[a-z-]+ )?favou?rites?\b"),
        ("asked", r"[- ]friendly\b"),
        ("only", r" only\b(?=\W*$|[.,;!]| please)"),
    )
]
