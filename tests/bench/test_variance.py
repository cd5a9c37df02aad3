"""``actnn bench variance``: noise of real gradients, measured and predicted."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from actnn.bench import variance
from actnn.errors import ConfigError


def test_the_variance_of_all_schemes_is_measured_and_predicted_on_real_images(capsys):
    pytest.importorskip("sklearn")
    settings = ["--data", "digits", "--images", "48", "--batch", "16", "--steps", "12", "--draws", "6", "--size", "16"]
    assert variance.main(settings) == 0
    found = {record["scheme"]: record for record in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found.keys() == {*variance.SCHEMES, variance.SAMPLES}
    assert found["L2"]["variance"] < found["original"]["variance"]
    assert found["L2"]["kept_ratio"] > found["original"]["kept_ratio"]
    for scheme in ("L3", variance.SAMPLES):
        # few draws on a few steps of training, which differ between processors
        assert found[scheme]["ratio_to_l2"] < 0.98
        assert found[scheme]["kept_ratio"] == pytest.approx(found["L2"]["kept_ratio"], rel=0.02)
        assert found[scheme]["average_bits"] == pytest.approx(2, rel=0.01)
    for record in found.values():
        # so few and small images leave much noise to be handed further down than is predicted
        assert 1 / 3 < record["predicted"] / record["variance"] < 2
        assert record["rank_correlation"] > 0.8


def test_the_noise_of_a_language_model_is_measured_after_exact_training(capsys):
    pytest.importorskip("transformers")
    model = "bert:layers=1,width=32,tokens=16,vocabulary=64"
    settings = ["--model", model, "--batch", "4", "--steps", "4", "--draws", "6", "--batches", "3"]
    assert variance.main([*settings, "--schemes", "L2", "L3"]) == 0
    found = {record["scheme"]: record for record in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found.keys() == {"L2", "L3"}
    for record in found.values():
        assert (record["data"], record["size"], record["training"]) == ("tokens", "16 tokens", "exact")
        assert record["sampling_variance"] > record["variance"] > 0
        assert record["of_sampling"] == pytest.approx(record["variance"] / record["sampling_variance"])
        assert len(record["noisiest_of_sampling"]) == variance.NOISIEST
        assert abs(record["bias"]) < 5 * record["bias_error"]
        assert len(record["noisiest"]) == variance.NOISIEST
        assert all(record["noisiest"][0][1] >= share for _, share in record["noisiest"])
        assert "ratio_to_original" not in record


def test_methods_of_others_are_measured_beside_ours_with_all_bytes_that_are_kept(capsys):
    pytest.importorskip("sklearn")
    settings = ["--data", "digits", "--images", "32", "--batch", "8", "--steps", "2", "--draws", "2", "--size", "16"]
    assert variance.main([*settings, "--batches", "0", "--schemes", "L3", "blpa4", "division"]) == 0
    ours, blpa, division = map(json.loads, capsys.readouterr().out.splitlines())
    assert ours["exact_bytes"] == blpa["exact_bytes"] > 4 * blpa["kept_bytes"] > 4 * ours["kept_bytes"]
    assert (blpa["bits"], blpa["variance"]) == (4, 0.0)
    assert blpa["error"] == blpa["bias"] > 0
    assert "predicted" not in division


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "gpt2", "--training", "samples"], "does not learn from --data"),
        (["--model", "gpt2", "--data", "digits"], "does not learn from --data"),
        (["--model", "gpt2", "--schemes", variance.SAMPLES], "needs --training samples"),
    ],
)
def test_what_a_training_cannot_tell_is_refused(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        variance.main(arguments)


def test_batches_of_texts_differ_and_come_again():
    pytest.importorskip("torch")
    arguments = variance.parse(["--model", "gpt2:tokens=8", "--batch", "2"])
    (first, second), (again, _) = (list(islice(variance.examples(arguments), 2)) for _ in range(2))
    texts = [example.batch.named["input_ids"].tolist() for example in (first, second, again)]
    assert texts[0] == texts[2] != texts[1]
