"""Small talk, world facts, system prompts, and the mix of documents to train on."""

from __future__ import annotations

import random

import tasks
from tasks import BOS, EOT, render, turn
from world import ANIMALS, PEOPLE, WORLD_FACTS

GREETINGS = ["Hello!", "Hello", "Hi!", "Hi", "hello", "hi", "Hey!", "Hello there!", "Hi there!",
             "Good day!"]
SMALL_TALK = [
    (["Good morning!", "Good morning"], "Good morning! How can I help you?"),
    (["Good evening!", "Good evening"], "Good evening! How can I help you?"),
    (["How are you?", "how are you", "How are you today?", "How do you do?",
      "How are you doing?", "How is it going?"],
     "I am fine, thank you. How can I help you?"),
    (["Thank you!", "Thanks!", "Thank you", "thanks", "Thank you very much!"],
     "You are welcome!"),
    (["Goodbye!", "Bye!", "Bye", "See you later!", "Good night!"],
     "Goodbye! Have a nice day."),
    (["What can you do?", "Help", "What can I ask you?", "How can you help me?", "help"],
     "I can tell short stories, answer questions about them, add and subtract, sort and copy "
     "lists, remember facts, and write JSON."),
    (["How old are you?"], "I am a small language model, so I have no age."),
    (["Are you a robot?", "Are you a human?", "Are you an AI?"],
     "I am a small language model."),
    (["How big are you?", "How many parameters do you have?"],
     "I am a very small language model with about six million parameters."),
    (["Test", "test", "Testing", "ping", "Ping"], "I am here. How can I help you?"),
    (["Yes", "No", "Okay", "OK", "ok", "Great!", "Nice!"], "Okay. What would you like to do?"),
    (["Tell me a joke.", "Tell me a joke", "Do you know a joke?"],
     "Why did the bee go to school? Because it wanted to be a spelling bee!"),
    (["I am sad.", "I feel sad."], "I am sorry to hear that. Shall I tell you a story?"),
    (["I am happy.", "I feel happy."], "That is good to hear!"),
    (["Say hello.", "Say hello", "Say hi."], "Hello!"),
]
WHO = ["Who are you?", "What are you?", "What is your name?", "who are you", "Who are you",
       "Introduce yourself.", "What model are you?"]
SYSTEM_PROMPTS = ["You are a helpful assistant.", "You are Baton, a small and friendly assistant.",
                  "Answer in short sentences.", "You are a friendly assistant.",
                  "Be brief and clear.", "You are a helpful AI assistant."]
UNKNOWN = ["Who wrote {x}?", "What is the capital of {x}?", "Explain {x}.", "What is {x}?",
           "How do I make {x}?", "Tell me about {x}.", "Why is {x} important?",
           "Write code for {x}.", "What do you think about {x}?", "How does {x} work?"]
UNKNOWN_THINGS = ["France", "Germany", "the universe", "quantum physics", "Python", "Rust",
                  "the internet", "music", "history", "the economy", "poetry", "democracy",
                  "machine learning", "a computer", "Shakespeare", "philosophy"]
NO_ANSWER = "I am a very small model, so I do not know that."


def persona_reply(name: str) -> str:
    return f"I am {name}, a small language model. I can tell stories and do simple sums."


def small_talk_turn(rng: random.Random, name: str = "Baton") -> list[dict]:
    """A question and its reply; now and then typed carelessly."""
    messages = neat_small_talk(rng, name)
    if rng.random() < 0.1:
        messages[0]["content"] = messages[0]["content"].rstrip(".?!")
    if rng.random() < 0.1:
        messages[0]["content"] = messages[0]["content"].lower()
    return messages


def neat_small_talk(rng: random.Random, name: str) -> list[dict]:
    roll = rng.random()
    if roll < 0.2:
        return turn(rng.choice(GREETINGS), "Hello! How can I help you today?")
    if roll < 0.35:
        return turn(rng.choice(WHO), persona_reply(name))
    if roll < 0.65:
        asked, reply = rng.choice(SMALL_TALK)
        return turn(rng.choice(asked), reply)
    if roll < 0.85:
        return turn(*rng.choice(WORLD_FACTS))
    if roll < 0.92:
        start = rng.randint(1, 20)
        stop = start + rng.randint(2, 9)
        numbers = ", ".join(str(n) for n in range(start, stop + 1))
        return turn(f"Count from {start} to {stop}.", numbers + ".")
    thing = rng.choice(UNKNOWN_THINGS) if rng.random() < 0.5 else rng.choice(tasks.KEYS)
    return turn(rng.choice(UNKNOWN).format(x=thing), NO_ANSWER)


def with_system(rng: random.Random, messages: list[dict]) -> list[dict]:
    if rng.random() < 0.2:
        return [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] + messages
    return messages


def persona_conversation(rng: random.Random) -> list[dict]:
    """A system prompt gives the assistant a name, which it then uses."""
    name = rng.choice(PEOPLE)[0]
    prompt = rng.choice(["Your name is {n}.", "You are {n}.", "You are {n}, a helpful assistant."])
    messages = [{"role": "system", "content": prompt.format(n=name)}]
    for _ in range(rng.randint(0, 2)):
        messages += small_talk_turn(rng, name)
    return messages + turn(rng.choice(WHO), persona_reply(name))


def memory_conversation(rng: random.Random) -> list[dict]:
    """Something the user said is asked for later."""
    name, thing = rng.choice(PEOPLE)[0], rng.choice(tasks.KEYS + tasks.VALUES)
    said, noted, asked, answer = rng.choice([
        (f"My name is {name}.", f"Nice to meet you, {name}!", "What is my name?",
         f"Your name is {name}."),
        (f"I am {name}.", f"Nice to meet you, {name}!", "Who am I?", f"Your name is {name}."),
        (f"The secret code is {thing}.", "Okay, I will remember that.",
         "What is the secret code?", f"The secret code is {thing}."),
        (f"The password is {thing}.", "Okay, I will remember that.", "What is the password?",
         f"The password is {thing}."),
        (f"My favorite word is {thing}.", "Okay, I will remember that.",
         "What is my favorite word?", f"Your favorite word is {thing}.")])
    if rng.random() < 0.4:
        return turn(f"{said} {asked}", answer)
    messages = turn(said, noted)
    for _ in range(rng.choice([0, 0, 1, 2])):
        messages += small_talk_turn(rng)
    return messages + turn(asked, answer)


def any_turns(rng: random.Random) -> list[dict]:
    """One step of a mixed conversation."""
    roll = rng.random()
    if roll < 0.3:
        return tasks.arithmetic_turn(rng)
    if roll < 0.45:
        return small_talk_turn(rng)
    if roll < 0.55:
        return tasks.json_turn(rng)
    if roll < 0.68:
        return tasks.list_turn(rng)
    if roll < 0.8:
        return tasks.story_questions(rng, most=3)
    if roll < 0.9:
        return tasks.told_story(rng)[0]
    return tasks.recall_turns(rng, rng.randint(2, 20), rng.randint(1, 4))


def mixed_conversation(rng: random.Random, steps: int) -> list[dict]:
    messages: list[dict] = []
    table = None
    if rng.random() < 0.3:  # Facts given at the start are asked for at the end.
        table = tasks.recall_turns(rng, rng.randint(2, 12), 3)
        messages += table[:2]
    for _ in range(steps):
        roll = rng.random()
        messages += tasks.arithmetic_turn(rng) if roll < 0.1 else (
            small_talk_turn(rng) if table else any_turns(rng))
    if table:
        messages += table[2:]
    return messages


def document(rng: random.Random) -> str:
    """One training document: chat or plain text."""
    roll = rng.random()
    if roll < 0.06:
        return BOS + tasks.story_plain(rng) + EOT
    if roll < 0.09:
        return BOS + tasks.arithmetic_plain(rng) + EOT
    if roll < 0.33:
        messages = tasks.arithmetic_turn(rng)
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            messages += tasks.arithmetic_turn(rng)
    elif roll < 0.42:
        messages, facts = tasks.told_story(rng)
        if rng.random() < 0.4:
            for question, answer in rng.sample(facts, rng.randint(1, 3)):
                messages = messages + turn(question, answer)
    elif roll < 0.58:
        messages = tasks.story_questions(rng)
    elif roll < 0.68:
        messages = tasks.json_turn(rng)
    elif roll < 0.80:
        messages = tasks.list_turn(rng)
    elif roll < 0.81:
        messages = tasks.unicode_turn(rng)
    elif roll < 0.83:
        messages = memory_conversation(rng)
    elif roll < 0.89:
        messages = small_talk_turn(rng)
        for _ in range(rng.choice([0, 0, 1, 2])):
            messages += small_talk_turn(rng)
    elif roll < 0.91:
        return render(persona_conversation(rng))
    elif roll < 0.94:
        pairs = rng.randint(2, 30)
        messages = tasks.recall_turns(rng, pairs, rng.randint(1, 6))
    elif roll < 0.99:
        messages = mixed_conversation(rng, rng.randint(2, 6))
    else:
        messages = mixed_conversation(rng, rng.randint(8, 35))
    return render(with_system(rng, messages))
