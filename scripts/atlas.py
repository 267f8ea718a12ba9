"""The demo's conversations: an atlas as long as asked for, and questions whose answers a person knows."""

from __future__ import annotations

import random

from scripts.turns import Messages

# country, capital, language, currency
_COUNTRIES = """
Argentina,Buenos Aires,Spanish,peso;Austria,Vienna,German,euro;Bangladesh,Dhaka,Bengali,taka;Belgium,Brussels,Dutch,euro;
Brazil,Brasilia,Portuguese,real;Bulgaria,Sofia,Bulgarian,euro;Cambodia,Phnom Penh,Khmer,riel;Chile,Santiago,Spanish,peso;
China,Beijing,Chinese,yuan;Colombia,Bogota,Spanish,peso;Croatia,Zagreb,Croatian,euro;Cuba,Havana,Spanish,peso;
Denmark,Copenhagen,Danish,krone;Ecuador,Quito,Spanish,dollar;Egypt,Cairo,Arabic,pound;Estonia,Tallinn,Estonian,euro;
Ethiopia,Addis Ababa,Amharic,birr;Finland,Helsinki,Finnish,euro;Georgia,Tbilisi,Georgian,lari;Germany,Berlin,German,euro;
Ghana,Accra,English,cedi;Greece,Athens,Greek,euro;Hungary,Budapest,Hungarian,forint;Iceland,Reykjavik,Icelandic,krona;
India,New Delhi,Hindi,rupee;Indonesia,Jakarta,Indonesian,rupiah;Iran,Tehran,Persian,rial;Iraq,Baghdad,Arabic,dinar;
Ireland,Dublin,English,euro;Israel,Jerusalem,Hebrew,shekel;Italy,Rome,Italian,euro;Jamaica,Kingston,English,dollar;
Japan,Tokyo,Japanese,yen;Jordan,Amman,Arabic,dinar;Kenya,Nairobi,Swahili,shilling;Laos,Vientiane,Lao,kip;
Latvia,Riga,Latvian,euro;Lebanon,Beirut,Arabic,pound;Lithuania,Vilnius,Lithuanian,euro;Malaysia,Kuala Lumpur,Malay,ringgit;
Mexico,Mexico City,Spanish,peso;Mongolia,Ulaanbaatar,Mongolian,togrog;Morocco,Rabat,Arabic,dirham;Nepal,Kathmandu,Nepali,rupee;
Netherlands,Amsterdam,Dutch,euro;Norway,Oslo,Norwegian,krone;Pakistan,Islamabad,Urdu,rupee;Peru,Lima,Spanish,sol;
Philippines,Manila,Filipino,peso;Poland,Warsaw,Polish,zloty;Portugal,Lisbon,Portuguese,euro;Romania,Bucharest,Romanian,leu;
Russia,Moscow,Russian,ruble;Serbia,Belgrade,Serbian,dinar;Slovakia,Bratislava,Slovak,euro;Slovenia,Ljubljana,Slovene,euro;
Spain,Madrid,Spanish,euro;Sweden,Stockholm,Swedish,krona;Thailand,Bangkok,Thai,baht;Turkey,Ankara,Turkish,lira;
Ukraine,Kyiv,Ukrainian,hryvnia;Uruguay,Montevideo,Spanish,peso;Vietnam,Hanoi,Vietnamese,dong;Zambia,Lusaka,English,kwacha
"""
_ENTRIES = [tuple(entry.strip().split(",")) for entry in _COUNTRIES.strip().split(";")]
_ATLAS_TOKENS_PER_ENTRY = 24

FIRST_QUESTION = "Tell me in three or four sentences what this atlas is about and how its entries are written."
SECOND_QUESTION = "What is the capital of France?"


def conversation(prompt_tokens: int, seed: int) -> Messages:
    """The first turn of a conversation whose second turn has about `prompt_tokens`. Another `seed` shares no prefix."""
    rnd = random.Random(seed)
    lines = [f"This is copy {rnd.randrange(10**6)} of a small atlas."]
    wanted = max(1, (prompt_tokens - _OTHER_TOKENS) // _ATLAS_TOKENS_PER_ENTRY)
    while len(lines) <= wanted:
        for country, capital, language, currency in rnd.sample(_ENTRIES, len(_ENTRIES)):
            lines.append(
                f"The capital of {country} is {capital}. Most people in {country} speak {language}, "
                f"and they pay with the {currency}."
            )
    atlas = "\n".join(lines[: wanted + 1])
    return [{"role": "system", "content": atlas}, {"role": "user", "content": FIRST_QUESTION}]


_OTHER_TOKENS = 130
"""Both questions, the first answer and the chat template's own tokens."""
