from convrec.demonstrations.describe import PASSAGE_LENGTH, PASSAGES, Describer, find_passages, metadata_text
from tests.demonstrations.chat_server import PROMPTS, ChatServer, client_of, completion, reported, sent


def test_the_labelled_lines_of_a_description_become_one_text():
    answer = "Sure!\n**Genres:** crime, drama\n- Keywords: heist, city\nPeople: UNKNOWN\nPlot: Cops and robbers."
    assert metadata_text(answer) == "crime, drama. heist, city. Cops and robbers"
    assert metadata_text("UNKNOWN") == metadata_text("I do not know it.") == ""


def test_passages_are_found_in_any_spelling_and_stand_around_the_title():
    texts = ["before " * 100 + "I loved the matrix reloaded so much" + " after" * 100, "Heat was hot", "no film at all"]
    texts += [f"matrix reloaded again {n}" for n in range(10)]
    found = find_passages(["Matrix Reloaded", "Heat", "The Long Unseen"], texts)
    assert set(found) == {"Matrix Reloaded"}, "short words mean other things, and the last stands nowhere"
    assert len(found["Matrix Reloaded"]) == PASSAGES
    spellings = ["Kill Bill: Vol. 1", "Kill Bill Volume 1"]
    found_in = find_passages(spellings, ["before " * 200 + "kill bill volume 1 was fun" + " after" * 200])
    assert all("kill bill volume 1" in found_in[title][0] for title in spellings)
    assert "matrix reloaded" in found["Matrix Reloaded"][0] and len(found["Matrix Reloaded"][0]) <= PASSAGE_LENGTH


def test_passages_are_found_in_scripts_without_spaces():
    texts = ["我喜欢花样年华，" + "很美" * 300, "他是我们的英雄", "没有"]
    found = find_passages(["花样年华", "英雄"], texts)
    assert set(found) == {"花样年华"} and "花样年华" in found["花样年华"][0]
    assert len(found["花样年华"][0]) <= PASSAGE_LENGTH


def _describer(tmp_path, server):
    return Describer(client_of(server, tmp_path), PROMPTS, ["User: that primer movie with the time box was confusing"])


def test_an_item_is_asked_for_once_and_an_unknown_one_with_what_people_wrote(tmp_path):
    def reply(asked):
        known = "Primer Movie" not in asked.prompt
        inferred = "time box" in asked.prompt
        text = "Genres: crime" if known else "Genres: sci-fi\nPlot: Time travel." if inferred else "UNKNOWN"
        return sent(completion(text, reported()))

    names, titles = ["Heat (1995)", "Primer Movie (2004)"], ["Heat", "Primer Movie"]
    with ChatServer(reply) as server:
        texts = _describer(tmp_path, server).describe(names, titles)
        assert texts == ["Heat (1995). crime", "Primer Movie (2004). sci-fi. Time travel"]
        assert len(server.asked) == 3
        again = _describer(tmp_path, server).describe([*names, "Up (2009)"], [*titles, "Up"])
        assert again[:2] == texts and len(server.asked) == 4, "of a later catalog only the new item is asked"
