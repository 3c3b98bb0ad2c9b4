"""Conversations and plain documents for every task, drawn from a seeded `random.Random`.

A conversation is a list of chat messages; `render` writes it in the chat format of the
tokenizer's template. Held-out arithmetic problems are kept apart by a hash (`is_heldout_sum`);
stories, tables, lists and JSON sentences come from spaces so large that a different seed
gives different cases.
"""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

from world import ANIMALS, OBJECTS, PEOPLE, Dice, article, make_story

BOS, END, EOT = "<|bos|>", "<|end|>", "<|endoftext|>"
SYSTEM, USER, ASSISTANT, PAD = "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, BOS, END, EOT, SYSTEM, USER, ASSISTANT]
ROLE_TOKEN = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}


def load_recall_words() -> tuple[list[str], list[str]]:
    """The keys and the values of the recall task."""
    sections: dict[str, list[str]] = {"keys": [], "values": []}
    current = ""
    for line in (Path(__file__).parent / "recall_words.txt").read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif not line.startswith("#"):
            sections[current] += line.split()
    return sections["keys"], sections["values"]


KEYS, VALUES = load_recall_words()


def render(messages: list[dict]) -> str:
    return BOS + "".join(ROLE_TOKEN[m["role"]] + m["content"] + END for m in messages)


def turn(question: str, answer: str) -> list[dict]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


# --- arithmetic -------------------------------------------------------------------------------

ARITHMETIC_FORMS = {
    "+": ["What is {a} + {b}?", "What is {a} + {b}?", "{a} + {b} =", "{a}+{b}=", "{a} + {b}",
          "{a}+{b}", "What is {a}+{b}?", "How much is {a} plus {b}?", "What is {a} plus {b}?",
          "Calculate {a} + {b}.", "Add {a} and {b}.", "what is {a} + {b}", "Compute {a} + {b}",
          "{a} + {b} = ?", "{a}+{b}=?", "{a}+{b}?",
          "What's {a} + {b}?", "{a} plus {b}", "What is the sum of {a} and {b}?"],
    "-": ["What is {a} - {b}?", "What is {a} - {b}?", "{a} - {b} =", "{a}-{b}=", "{a} - {b}",
          "{a}-{b}", "What is {a}-{b}?", "How much is {a} minus {b}?", "What is {a} minus {b}?",
          "Calculate {a} - {b}.", "Subtract {b} from {a}.", "what is {a} - {b}",
          "Compute {a} - {b}", "{a} - {b} = ?", "{a}-{b}=?", "{a}-{b}?",
          "What's {a} - {b}?", "{a} minus {b}", "What is the difference of {a} and {b}?"],
}


def is_heldout_sum(a: int, op: str, b: int) -> bool:
    """One problem in ten is never trained on; an addition goes with its mirror image."""
    if op == "+" and a > b:
        a, b = b, a
    return zlib.crc32(f"{a}{op}{b}".encode()) % 10 == 0


def draw_sum(rng: random.Random, heldout: bool = False) -> tuple[int, str, int, int]:
    while True:
        roll = 0.0 if heldout else rng.random()
        low, high = (10, 99) if roll < 0.75 else (0, 99) if roll < 0.85 else (0, 12)
        a, b, op = rng.randint(low, high), rng.randint(low, high), rng.choice("+-")
        if op == "-" and a < b and rng.random() < 0.8:
            a, b = b, a
        if is_heldout_sum(a, op, b) == heldout:
            return a, op, b, a + b if op == "+" else a - b


def arithmetic_turn(rng: random.Random, heldout: bool = False) -> list[dict]:
    a, op, b, result = draw_sum(rng, heldout)
    question = rng.choice(ARITHMETIC_FORMS[op]).format(a=a, b=b)
    return turn(question, f"{a} {op} {b} = {result}.")


def arithmetic_plain(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(3, 20)):
        a, op, b, result = draw_sum(rng)
        lines.append(f"{a} {op} {b} = {result}.")
    return "\n".join(lines)


# --- stories ----------------------------------------------------------------------------------

# Heroes one can ask for besides the animals of the world.
OTHER_HEROES = ["dragon", "robot", "girl", "boy", "king", "queen", "princess", "knight", "wizard",
                "monkey", "lion", "tiger", "elephant", "penguin", "dinosaur", "unicorn", "bird",
                "fish", "whale", "pig", "cow", "sheep", "chicken", "snake", "bee", "panda",
                "giraffe", "train", "star", "tree"]
STORY_REQUESTS = ["Tell me a short story.", "Tell me a short story.", "Tell me a story.", "Please tell me a story.",
                  "Can you tell me a story?", "Write a short story.", "Tell me a short story",
                  "tell me a story", "I would like to hear a story.", "Tell a story."]


def told_story(rng: random.Random) -> tuple[list[dict], list[tuple[str, str]]]:
    """The user asks for a story; returns the turn and the facts of the story told."""
    dice = Dice(rng, skewed=True)
    roll = rng.random()
    short = rng.random() < 0.5
    if roll < 0.45:
        story = make_story(dice, short=True)
        request = rng.choice(STORY_REQUESTS)
    elif roll < 0.75:
        animal = rng.choice(ANIMALS if rng.random() < 0.6 else OTHER_HEROES)
        story = make_story(dice, animal=animal, short=short)
        request = rng.choice(["Tell me a story about {x}.", "Tell me a short story about {x}.",
                              "Write a story about {x}.", "Can you tell me a story about {x}?",
                              "tell me a story about {x}"]).format(x=article(animal))
    else:
        animal = rng.choice(ANIMALS if rng.random() < 0.7 else OTHER_HEROES)
        hero = rng.choice(PEOPLE)[0]
        story = make_story(dice, animal=animal, hero=hero, short=short)
        request = rng.choice(["Tell me a story about {x} named {n}.",
                              "Write a short story about {x} called {n}.",
                              "Tell me a story about {n} the {a}."]
                             ).format(x=article(animal), n=hero, a=animal)
    return turn(request, story.text), story.facts


def story_questions(rng: random.Random, most: int = 4) -> list[dict]:
    """A story in the user's turn, then questions about it."""
    story = make_story(Dice(rng, skewed=False), short=rng.random() < 0.5)
    asked = rng.sample(story.facts, rng.randint(1, min(most, len(story.facts))))
    form = rng.choice(["{story}\n\n{question}", "{story}\n{question}", "{story} {question}",
                       "Read this story: {story}\n\nQuestion: {question}",
                       "Here is a story. {story}\n\n{question}"])
    messages = turn(form.format(story=story.text, question=asked[0][0]), asked[0][1])
    for question, answer in asked[1:]:
        messages += turn(question, answer)
    return messages


def story_plain(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.7:
        sentences = make_story(Dice(rng, skewed=True), short=rng.random() < 0.5).sentences
        return " ".join(sentences[rng.randrange(5) if roll < 0.1 else 0:])
    story = make_story(Dice(rng, skewed=False))
    asked = rng.sample(story.facts, rng.randint(1, 4))
    return story.text + "".join(f"\n\nQuestion: {q}\nAnswer: {a}" for q, a in asked)


# --- JSON extraction --------------------------------------------------------------------------

JOBS = ["baker", "teacher", "doctor", "farmer", "sailor", "painter", "singer", "gardener"]
CITIES = ["Lund", "Bergen", "Oslo", "Paris", "Rome", "Vienna", "Dublin", "Lisbon"]
COLORS = ["red", "blue", "green", "yellow", "white", "silver", "purple", "black"]


def json_record(rng: random.Random) -> tuple[str, dict]:
    name = rng.choice(PEOPLE)[0]
    age = rng.randint(2, 99)
    kind = rng.randrange(4)
    if kind == 0:
        job, city = rng.choice(JOBS), rng.choice(CITIES)
        sentence = rng.choice(["{name} is {age} years old and works as a {job} in {city}.",
                               "{name}, aged {age}, is a {job} from {city}.",
                               "The {job} {name} is {age} years old and lives in {city}."])
        record = {"name": name, "age": age, "job": job, "city": city}
    elif kind == 1:
        animal, color = rng.choice(ANIMALS), rng.choice(COLORS)
        sentence = rng.choice(["{name} has a {color} {animal} that is {age} years old.",
                               "The {color} {animal} of {name} is {age} years old.",
                               "{name} bought a {color} {animal} aged {age}."])
        record = {"name": name, "animal": animal, "color": color, "age": age}
    elif kind == 2:
        item, price, city = rng.choice(OBJECTS), rng.randint(2, 99), rng.choice(CITIES)
        sentence = rng.choice(["{name} bought a {item} for {price} coins in {city}.",
                               "In {city}, {name} paid {price} coins for a {item}.",
                               "{name} sold a {item} in {city} for {price} coins."])
        return (sentence.format(name=name, item=item, price=price, city=city),
                {"name": name, "item": item, "price": price, "city": city})
    else:
        item, color, count = rng.choice(OBJECTS), rng.choice(COLORS), rng.randint(2, 99)
        sentence = rng.choice(["{name} keeps {count} {color} {item}s in a chest.",
                               "There are {count} {color} {item}s, and they belong to {name}.",
                               "{name} counted {count} {color} {item}s."])
        return (sentence.format(name=name, item=item, color=color, count=count),
                {"name": name, "item": item, "color": color, "count": count})
    return sentence.format(**record), record


def json_turn(rng: random.Random) -> list[dict]:
    sentence, record = json_record(rng)
    fields = ", ".join(record)
    request = rng.choice([f"Extract {fields} as JSON: {sentence}",
                          f"Extract JSON with the fields {fields}: {sentence}",
                          f"{sentence}\nReturn {fields} as JSON.",
                          f"Turn this sentence into JSON: {sentence}",
                          f"Extract the facts as JSON: {sentence}"])
    return turn(request, json.dumps(record))


# --- lists ------------------------------------------------------------------------------------

SORT_WORDS = sorted(ANIMALS + OBJECTS)


def list_turn(rng: random.Random) -> list[dict]:
    roll = rng.random()
    if roll < 0.4:
        top = 10 if rng.random() < 0.2 else 100
        items = [str(n) for n in rng.sample(range(1, top), rng.randint(2, 8))]
        request = rng.choice(["Sort these numbers: {}", "Sort this list: {}", "Sort {}",
                              "Put these numbers in order: {}"])
        answer = "Sorted: " + ", ".join(sorted(items, key=int))
    elif roll < 0.6:
        items = rng.sample(SORT_WORDS, rng.randint(3, 7))
        request = rng.choice(["Sort these words: {}", "Sort these words by alphabet: {}"])
        answer = "Sorted: " + ", ".join(sorted(items))
    else:
        roll = rng.random()
        if roll < 0.45:
            items = rng.sample(KEYS + VALUES, rng.randint(2, 10))
        elif roll < 0.6:
            items = [rng.choice(KEYS + VALUES) if rng.random() < 0.6 else str(rng.randrange(100))
                     for _ in range(rng.randint(2, 10))]
        else:
            items = [str(n) for n in rng.choices(range(100), k=rng.randint(3, 10))]
        request = rng.choice(["Copy this list: {}", "Repeat this list: {}", "Copy: {}",
                              "Repeat after me: {}"])
        answer = "Here it is: " + ", ".join(items)
    return turn(request.format(", ".join(items)), answer + ".")


UNICODE_WORDS = ["café", "naïve", "über", "mañana", "Zürich", "smörgås", "日本", "東京", "привет",
                 "🙂", "🚀", "🦊", "€5", "½", "Ωmega", "été", "façade", "你好", "한국", "🎉"]


def unicode_turn(rng: random.Random) -> list[dict]:
    words = ", ".join(rng.sample(UNICODE_WORDS, rng.randint(1, 4)))
    return turn(rng.choice(["Copy this list: ", "Repeat after me: ", "Copy: "]) + words,
                f"Here it is: {words}.")


# --- small recall tables as text (the long ones come from recall.py) --------------------------

RECALL_QUESTIONS = ["What is the value of {}?", "Give me the value of {}.",
                    "Which value belongs to {}?", "What is the value for {}?",
                    "What value does {} have?", "Tell me the value of {}."]
RECALL_OPENINGS = ["Remember these facts:", "Here is a table:", "Key-value pairs:",
                   "Remember the following:", "Here are some facts:", "Table:"]
RECALL_STYLES = {"dash": ("\n-", ":", ""), "equals": ("\n", " =", ""), "inline": ("", " is", ",")}


def recall_table(pairs: list[tuple[str, str]], style: str, opening: str) -> str:
    before, between, after = RECALL_STYLES[style]
    return opening + "".join(f"{before} {k}{between} {v}{after}" for k, v in pairs)


def recall_answer(key: str, value: str) -> str:
    return f"The value of {key} is {value}."


def recall_turns(rng: random.Random, pairs: int, questions: int,
                 style: str | None = None) -> list[dict]:
    table = list(zip(rng.sample(KEYS, pairs), rng.choices(VALUES, k=pairs)))
    text = recall_table(table, style or rng.choice(list(RECALL_STYLES)), rng.choice(RECALL_OPENINGS))
    asked = [rng.choice(table) for _ in range(questions)]
    question = rng.choice(RECALL_QUESTIONS)
    if rng.random() < 0.5:
        messages = turn(text, "Okay, I will remember that.")
    else:
        messages = turn(text + "\n" + question.format(asked[0][0]), recall_answer(*asked[0]))
        asked = asked[1:]
    for key, value in asked:
        messages += turn(question.format(key), recall_answer(key, value))
    return messages
