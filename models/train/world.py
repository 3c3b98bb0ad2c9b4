"""A small made-up English world: characters, places, short consistent stories, questions.

Everything is drawn from a `random.Random` that the caller seeds, so the same seed always
gives the same text. A story is a list of sentences plus the facts it states; the questions
are made from those facts, so every answer can be read off the text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

# (name, pronoun, possessive, object form)
PEOPLE = [
    ("Mila", "she", "her", "her"), ("Tom", "he", "his", "him"), ("Nora", "she", "her", "her"),
    ("Ben", "he", "his", "him"), ("Lily", "she", "her", "her"), ("Max", "he", "his", "him"),
    ("Ella", "she", "her", "her"), ("Finn", "he", "his", "him"), ("Ruby", "she", "her", "her"),
    ("Oscar", "he", "his", "him"), ("Zoe", "she", "her", "her"), ("Leo", "he", "his", "him"),
    ("Anna", "she", "her", "her"), ("Hugo", "he", "his", "him"), ("Clara", "she", "her", "her"),
    ("Sam", "he", "his", "him"), ("Ivy", "she", "her", "her"), ("Otto", "he", "his", "him"),
    ("Maya", "she", "her", "her"), ("Jack", "he", "his", "him"),
]
ANIMALS = ["fox", "rabbit", "bear", "owl", "mouse", "cat", "dog", "duck", "hedgehog", "frog",
           "squirrel", "deer", "wolf", "goat", "horse", "turtle"]
TRAITS = ["little", "brave", "kind", "clever", "shy", "curious", "cheerful", "quiet"]
HOMES = ["in the forest", "in a small house by the river", "in a hollow tree", "on a green hill",
         "in a cave near the lake", "in an old barn", "in a quiet village", "at the edge of the meadow"]
OBJECTS = ["lamp", "kite", "key", "bell", "shell", "ball", "book", "hat", "coin", "boat", "drum",
           "ribbon", "box", "ring", "map", "cup"]
COLORS = ["red", "blue", "green", "yellow", "white", "golden", "silver", "purple"]
SPOTS = ["under a tall oak", "near the old bridge", "by the lake", "in the tall grass",
         "behind the mill", "beside the path", "on the beach", "under a flat stone"]
FOODS = ["soup", "bread", "berries", "cake", "apples", "honey", "pancakes", "nuts"]
WEATHERS = ["sunny", "windy", "rainy", "cold", "warm", "foggy"]
GOALS = ["the sea", "the high mountain", "the big waterfall", "the old castle", "the market",
         "the lighthouse"]
OPENINGS = ["Once upon a time, there was", "Once there was", "Long ago, there was",
            "In a faraway land, there was"]
ENDINGS = ["From that day on, {hero} and {friend} were best friends.",
           "That night, {hero} fell asleep with a smile.",
           "And they all lived happily ever after.",
           "{Hero} never forgot that day."]
MORALS = ["It is good to help a friend.", "Sharing makes everyone happy.",
          "Being kind is its own reward.", "Never give up."]


class Dice:
    """Random choices; `skewed` prefers the front of each list, so a model has clear favourites."""

    def __init__(self, rng: random.Random, skewed: bool = False):
        self.rng = rng
        self.skewed = skewed

    def pick(self, items):
        if not self.skewed:
            return items[int(self.rng.random() * len(items))]
        # A geometric draw: each item is taken with probability 0.45 before the next is tried.
        for item in items:
            if self.rng.random() < 0.45:
                return item
        return items[0]

    def other(self, items, *taken):
        return self.pick([item for item in items if item not in taken])

    def chance(self, p: float) -> bool:
        return self.rng.random() < p


def article(noun_phrase: str) -> str:
    return ("an " if noun_phrase[0] in "aeiou" else "a ") + noun_phrase


@dataclass
class Story:
    sentences: list[str]
    facts: list[tuple[str, str]] = field(default_factory=list)  # (question, answer)
    hero: str = ""
    animal: str = ""

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def make_story(dice: Dice, animal: str | None = None, hero: str | None = None,
               short: bool = False) -> Story:
    """One story: an opening, one of five plots, an ending."""
    person = next((p for p in PEOPLE if p[0] == hero), None) or dice.pick(PEOPLE)
    name, he, his, him = person
    friend_person = dice.other(PEOPLE, person)
    friend = friend_person[0]
    animal = animal or dice.pick(ANIMALS)
    friend_animal = dice.other(ANIMALS, animal)
    trait = dice.pick(TRAITS)
    home = dice.pick(HOMES)
    He = he.capitalize()
    s = Story([], [], name, animal)
    s.sentences.append(f"{dice.pick(OPENINGS)} {article(trait + ' ' + animal)} named {name}.")
    s.sentences.append(f"{name} lived {home}.")
    s.facts += [
        (f"What is the name of the {animal}?", f"The name of the {animal} is {name}."),
        (f"Where did {name} live?", f"{name} lived {home}."),
        (f"What kind of animal is {name}?", f"{name} is {article(animal)}."),
    ]
    ctx = dict(dice=dice, s=s, name=name, he=he, his=his, him=him, He=He, friend=friend,
               friend_animal=friend_animal, fhe=friend_person[1], fhim=friend_person[3])
    dice.pick(PLOTS)(**ctx)
    s.facts += [
        (f"Who is {friend}?", f"{friend} is {article(friend_animal)}."),
        (f"What is the name of the {friend_animal}?",
         f"The name of the {friend_animal} is {friend}."),
    ]
    if not short and dice.chance(0.3):
        s.sentences.append(f"{name} learned something that day: {dice.pick(MORALS)}")
    s.sentences.append(dice.pick(ENDINGS).format(hero=name, Hero=name, friend=friend))
    return s


def plot_found(dice, s, name, he, his, him, He, friend, friend_animal, fhe, fhim):
    """The hero finds a thing and gives it back to its owner."""
    color, thing = dice.pick(COLORS), dice.pick(OBJECTS)
    spot, food, weather = dice.pick(SPOTS), dice.pick(FOODS), dice.pick(WEATHERS)
    s.sentences += [
        f"One {weather} day, {name} found {article(color + ' ' + thing)} {spot}.",
        f"{He} asked everyone who had lost it.",
        f"At last {he} met {article(friend_animal)} named {friend}.",
        f'"That is my {thing}!" said {friend}. "Thank you, {name}!"',
        f"{friend} was so happy that {fhe} gave {name} some {food}.",
    ]
    s.facts += [
        (f"What did {name} find?", f"{name} found {article(color + ' ' + thing)}."),
        (f"What color was the {thing}?", f"The {thing} was {color}."),
        (f"Where did {name} find the {thing}?", f"{name} found the {thing} {spot}."),
        (f"Whose {thing} was it?", f"The {thing} belonged to {friend}."),
        (f"What did {friend} give {name}?", f"{friend} gave {name} some {food}."),
        ("What was the weather like?", f"It was {article(weather + ' day')}."),
    ]


def plot_lost(dice, s, name, he, his, him, He, friend, friend_animal, fhe, fhim):
    """The hero loses a thing and a friend finds it."""
    color, thing = dice.pick(COLORS), dice.pick(OBJECTS)
    first = dice.pick(SPOTS)
    spot = dice.other(SPOTS, first)
    food = dice.pick(FOODS)
    s.sentences += [
        f"{name} had {article(color + ' ' + thing)} and loved it very much.",
        f"One morning, the {thing} was gone, and {name} was sad.",
        f"{He} looked {first}, but it was not there.",
        f"Then a friend came by, {article(friend_animal)} named {friend}.",
        f"{friend} found the {thing} {spot}.",
        f"{name} said thank you, and they ate {food} together.",
    ]
    s.facts += [
        (f"What did {name} lose?", f"{name} lost {article(color + ' ' + thing)}."),
        (f"What color was the {thing}?", f"The {thing} was {color}."),
        (f"Where did {name} look first?", f"{name} looked {first}."),
        (f"Where was the {thing}?", f"The {thing} was {spot}."),
        (f"Who found the {thing}?", f"{friend} found the {thing}."),
        ("What did they eat?", f"They ate {food}."),
    ]


def plot_storm(dice, s, name, he, his, him, He, friend, friend_animal, fhe, fhim):
    """A storm comes and the hero gives a friend shelter."""
    food, thing, color = dice.pick(FOODS), dice.pick(OBJECTS), dice.pick(COLORS)
    s.sentences += [
        f"One night, a big storm came, and the wind was loud.",
        f"Someone knocked at the door. It was {article(friend_animal)} named {friend}.",
        f'"Please let me in," said {friend}. "I am cold and wet."',
        f"{name} opened the door and made some warm {food}.",
        f"In the morning, {friend} gave {name} {article(color + ' ' + thing)} to say thank you.",
    ]
    s.facts += [
        ("What came one night?", "A big storm came."),
        ("Who knocked at the door?", f"{friend} knocked at the door."),
        (f"What did {name} make?", f"{name} made some warm {food}."),
        (f"What did {friend} give {name}?", f"{friend} gave {name} {article(color + ' ' + thing)}."),
        (f"What color was the {thing}?", f"The {thing} was {color}."),
    ]


def plot_journey(dice, s, name, he, his, him, He, friend, friend_animal, fhe, fhim):
    """Two friends travel to see something and bring back a keepsake."""
    goal, weather, food = dice.pick(GOALS), dice.pick(WEATHERS), dice.pick(FOODS)
    color, thing = dice.pick(COLORS), dice.pick(OBJECTS)
    s.sentences += [
        f"{name} wanted to see {goal}.",
        f"One {weather} morning, {he} packed some {food} and started to walk.",
        f"On the way, {he} met {article(friend_animal)} named {friend}.",
        f'"May I come with you?" asked {friend}. "Yes, of course!" said {name}.',
        f"They walked all day, and at last they saw {goal}.",
        f"They took home {article(color + ' ' + thing)} so that they would remember the day.",
    ]
    s.facts += [
        (f"What did {name} want to see?", f"{name} wanted to see {goal}."),
        (f"What did {name} pack?", f"{name} packed some {food}."),
        (f"Who did {name} meet?", f"{name} met {friend}."),
        ("What was the weather like?", f"It was {article(weather + ' morning')}."),
        ("What did they take home?", f"They took home {article(color + ' ' + thing)}."),
        (f"What color was the {thing}?", f"The {thing} was {color}."),
    ]


def plot_party(dice, s, name, he, his, him, He, friend, friend_animal, fhe, fhim):
    """The hero prepares a surprise for a friend's birthday."""
    food, color, thing = dice.pick(FOODS), dice.pick(COLORS), dice.pick(OBJECTS)
    spot = dice.pick(SPOTS)
    s.sentences += [
        f"{name} had a good friend, {article(friend_animal)} named {friend}.",
        f"It was {friend}'s birthday, and {name} wanted to make {fhim} happy.",
        f"{He} made {food} and wrapped {article(color + ' ' + thing)}.",
        f"They had a party {spot}.",
        f"{friend} opened the gift and danced with joy.",
    ]
    s.facts += [
        ("Whose birthday was it?", f"It was {friend}'s birthday."),
        (f"What food did {name} make?", f"{name} made {food}."),
        (f"What was the gift?", f"The gift was {article(color + ' ' + thing)}."),
        (f"What color was the {thing}?", f"The {thing} was {color}."),
        ("Where was the party?", f"The party was {spot}."),
    ]


PLOTS = [plot_found, plot_lost, plot_journey, plot_storm, plot_party]

# Fixed facts of the world, asked without a story.
WORLD_FACTS = [
    ("What color is the sky?", "The sky is blue."),
    ("What color is grass?", "Grass is green."),
    ("What color is snow?", "Snow is white."),
    ("What color is the sun?", "The sun is yellow."),
    ("What does a rabbit eat?", "A rabbit eats grass and carrots."),
    ("What does a bear eat?", "A bear eats berries, fish and honey."),
    ("What does a cat drink?", "A cat drinks milk."),
    ("What sound does a dog make?", "A dog says woof."),
    ("What sound does a cat make?", "A cat says meow."),
    ("What sound does a duck make?", "A duck says quack."),
    ("What sound does an owl make?", "An owl says hoo."),
    ("How many legs does a cat have?", "A cat has four legs."),
    ("How many legs does a duck have?", "A duck has two legs."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("What comes after Monday?", "Tuesday comes after Monday."),
    ("What comes after Friday?", "Saturday comes after Friday."),
    ("What is the first day of the week?", "The first day of the week is Monday."),
    ("Where do fish live?", "Fish live in water."),
    ("Where do birds live?", "Birds live in nests."),
    ("When does the sun rise?", "The sun rises in the morning."),
    ("What do bees make?", "Bees make honey."),
]
