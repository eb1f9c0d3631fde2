"""Resampling policies: values, ends, types and errors."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidError, InvalidTypeError, MaskError, NoValueError
from relive.model.clock import INT64_MAX, INT64_MIN
from relive.model.episode import EpisodeView
from relive.model.resample import Policy, nearest, policy_of, slerp
from relive.model.signal import ArraySignal, Signal

IDENTITY = [0.0, 0.0, 0.0, 1.0]


def numbers(dtype: str = "float64") -> Signal[Any]:
    return ArraySignal(np.array([1, 3, 4], dtype=dtype), [10, 20, 40], name="arm.q")


def turned(degrees: float) -> list[float]:
    """Return a rotation about z as a quaternion, xyzw."""
    half = np.radians(degrees) / 2
    return [0.0, 0.0, np.sin(half), np.cos(half)]


def degrees(quaternion: Any) -> float:
    """Return the angle of a rotation about z, from -180 to 180."""
    angle = 2 * np.degrees(np.arctan2(quaternion[2], quaternion[3]))
    return float((angle + 180) % 360 - 180)


class TestHold:
    def test_matches_time_indexing(self) -> None:
        signal = numbers()
        times = [10, 19, 20, 500, 10]
        held, asked = signal.resample(times, "hold"), signal.time[times]
        assert list(held) == list(asked) == list(signal.resample(times))
        assert held.values().tolist() == [1, 1, 3, 4, 1]

    def test_error_names_the_signal_and_its_first_time(self) -> None:
        with pytest.raises(NoValueError, match=r"'arm.q' has no value at 9: .* at 10"):
            numbers().resample([10, 9])
        with pytest.raises(NoValueError, match=r"'arm.q' has no value at -83010348331692982281"):
            numbers().resample([INT64_MIN * 9 - 9])

    def test_later_changes_of_the_times_have_no_effect(self) -> None:
        times = np.array([10, 20])
        for policy in ("hold", "linear", "nearest"):
            sampled = numbers().resample(times, policy)
            times[0] = 40
            assert sampled.timestamps.tolist() == [10, 20], policy
            assert not sampled.timestamps.flags.writeable
            times[0] = 10


class TestNearest:
    def test_ties_go_to_the_earlier(self) -> None:
        sampled = numbers().resample([15, 16, 30, 31], nearest())
        assert sampled.values().tolist() == [1, 3, 3, 4]
        assert sampled.timestamps.tolist() == [15, 16, 30, 31]

    def test_times_beyond_both_ends(self) -> None:
        sampled = numbers().resample([INT64_MIN, 9, 41, INT64_MAX], nearest())
        assert sampled.values().tolist() == [1, 1, 4, 4]

    def test_tolerance_applies_on_both_sides(self) -> None:
        signal = numbers()
        assert signal.resample([5, 15, 45], nearest(5)).values().tolist() == [1, 1, 4]
        for time, near in ((4, 10), (26, 20), (34, 40), (46, 40)):
            with pytest.raises(
                NoValueError, match=rf"'arm.q' .* within 5 ns of {time}: the nearest is at {near}"
            ):
                signal.resample([10, time], nearest(5))

    def test_zero_and_unlimited_tolerance(self) -> None:
        signal = ArraySignal([1, 2], [INT64_MIN, INT64_MAX])
        assert signal.resample([INT64_MAX], nearest(0)).values().tolist() == [2]
        with pytest.raises(NoValueError):
            signal.resample([INT64_MAX - 1], nearest(0))
        assert signal.resample([-1, 0], nearest(INT64_MAX)).values().tolist() == [1, 2]
        with pytest.raises(NoValueError):
            signal.resample([-1], nearest(INT64_MAX - 1))
        assert signal.resample([-1], nearest(1 << 70)).values().tolist() == [1]

    def test_last_of_several_records_at_one_time_wins(self) -> None:
        signal = ArraySignal([1, 2, 3, 4], [10, 10, 20, 20])
        assert signal.resample([9, 14, 16, 99], nearest()).values().tolist() == [2, 2, 4, 4]

    def test_all_value_kinds(self) -> None:
        text = ArraySignal(["a", "b"], [10, 20])
        assert text.resample([16, 11], "nearest").values().tolist() == ["b", "a"]
        images = ArraySignal(np.arange(2 * 12, dtype=np.uint8).reshape(2, 2, 2, 3), [10, 20])
        assert images.resample([16], "nearest")[0][0].tolist() == images[1][0].tolist()

    def test_time_beyond_64_bits_raises(self) -> None:
        with pytest.raises(ValueError, match="64 bits"):
            numbers().resample([INT64_MIN - 1], nearest())

    @pytest.mark.parametrize("wrong", [1.5, "5", None])
    def test_tolerance_must_be_an_integer(self, wrong: Any) -> None:
        if wrong is None:
            assert nearest(None) == nearest()
            return
        with pytest.raises(InvalidTypeError):
            nearest(wrong)

    def test_tolerance_must_not_be_boolean_or_negative(self) -> None:
        with pytest.raises(MaskError):
            nearest(True)  # noqa: FBT003
        with pytest.raises(InvalidError, match="must not be negative"):
            nearest(-1)


class TestLinear:
    def test_values_are_on_the_line(self) -> None:
        sampled = numbers().resample([10, 11, 20, 30, 40, 41], "linear")
        assert sampled.values().tolist() == pytest.approx([1, 1.2, 3, 3.5, 4, 4])

    def test_time_before_the_first_record_raises(self) -> None:
        with pytest.raises(NoValueError, match=r"'arm.q' has no value at 9"):
            numbers().resample([9], "linear")

    @pytest.mark.parametrize(
        ("dtype", "made"),
        [
            ("int8", "float64"),
            ("uint64", "float64"),
            ("float16", "float16"),
            ("float32", "float32"),
            ("float64", "float64"),
        ],
    )
    def test_integers_become_floats_and_floats_stay(self, dtype: str, made: str) -> None:
        sampled = numbers(dtype).resample([30, 12], "linear")
        assert sampled.dtype == sampled.values().dtype == np.dtype(made)
        assert sampled[0][0] == 3.5
        assert type(sampled[0][0]) is np.dtype(made).type
        batch = sampled.gather([[0, 1]])
        assert np.asarray(batch["value"]).dtype == np.dtype(made)

    def test_vectors_keep_attributes(self) -> None:
        signal = ArraySignal([[0, 10], [10, 30]], [0, 100], attrs={"unit": "rad"})
        sampled = signal.resample([25], "linear")
        assert sampled[0][0].tolist() == [2.5, 15]
        assert not sampled[0][0].flags.writeable
        assert sampled.attrs == {"unit": "rad"}
        assert (sampled.kind, sampled.shape) == ("vector", (2,))

    def test_extreme_times_and_values(self) -> None:
        signal = ArraySignal([-1.7e308, 1.7e308], [INT64_MIN, INT64_MAX])
        sampled = signal.resample([INT64_MIN, INT64_MIN // 2, -1, INT64_MAX], "linear")
        assert sampled.values().tolist() == pytest.approx([-1.7e308, -0.85e308, 0, 1.7e308])

    def test_nan_and_inf_affect_only_their_neighbours(self) -> None:
        signal = ArraySignal([1, np.nan, 3, np.inf, np.inf, 4], [10, 20, 30, 40, 50, 60])
        sampled = signal.resample([10, 15, 25, 30, 35, 40, 45, 55, 60], "linear").values().tolist()
        assert sampled[0] == 1
        assert np.isnan(sampled[1:3]).all()
        assert sampled[3:] == [3, np.inf, np.inf, np.inf, np.inf, 4]

    def test_equal_ends_are_exact(self) -> None:
        signal = ArraySignal([0.1, 0.1], [0, 3])
        assert signal.resample([1, 2], "linear").values().tolist() == [0.1, 0.1]

    def test_last_of_several_records_at_one_time_wins(self) -> None:
        signal = ArraySignal([1.0, 2.0, 9.0, 4.0], [10, 10, 20, 20])
        assert signal.resample([10, 15, 20], "linear").values().tolist() == [2, 3, 4]

    def test_views_in_any_order(self) -> None:
        backwards = numbers()[[2, 0, 1]]
        assert backwards.resample([30, 12], "linear").values().tolist() == [3.5, 1.4]
        window = numbers().time[15:]
        with pytest.raises(NoValueError):
            window.resample([15], "linear")
        assert window.resample([30], "linear").values().tolist() == [3.5]

    def test_result_is_a_signal(self) -> None:
        sampled = numbers().resample([30, 12, 20], "linear")
        assert sampled.time[19][0] == 1.4
        assert sampled.time[12:30].values().tolist() == [1.4, 3.0]
        assert sampled.resample([16], "linear")[0][0] == pytest.approx(2.2)
        copy = pickle.loads(pickle.dumps(sampled))  # noqa: S301 - our own data
        assert list(copy) == list(sampled)
        assert sampled.values_at(range(0)).shape == (0,)

    @pytest.mark.parametrize(
        ("values", "held"),
        [
            (["a", "b"], "text"),
            ([True, False], "bool"),
            (np.zeros((2, 4, 4, 3), np.uint8), "images"),
        ],
    )
    def test_unsupported_values_raise_with_a_hint(self, values: Any, held: str) -> None:
        kind = "image" if held == "images" else None
        signal = ArraySignal(values, [1, 2], name="x", kind=kind)
        for policy in ("linear", slerp()):
            with pytest.raises(InvalidTypeError, match=f"'x', which holds {held}") as caught:
                signal.resample([1], policy)
            assert '"hold" or nearest()' in (caught.value.hint or "")


class TestSlerp:
    def test_rotation_is_even(self) -> None:
        signal = ArraySignal([turned(10), turned(50)], [0, 40])
        sampled = signal.resample([0, 10, 39, 40, 99], slerp())
        assert [degrees(value) for value, _ in sampled] == pytest.approx([10, 20, 49, 50, 50])

    @pytest.mark.parametrize("sign", [1, -1])
    def test_takes_the_shorter_arc_for_any_sign(self, sign: int) -> None:
        signal = ArraySignal(np.stack([turned(170), sign * np.array(turned(-170))]), [0, 20])
        values = signal.resample([5, 10, 15], slerp()).values()
        assert [abs(degrees(value)) for value in values] == pytest.approx([175, 180, 175])
        assert (values[:, 2] > 0).all()  # the sign of the previous record

    def test_both_component_orders_agree(self) -> None:
        ends = np.array([turned(0), turned(90)])
        one = ArraySignal(ends, [0, 2]).resample([1], slerp(order="xyzw")).values()
        other = ArraySignal(np.roll(ends, 1, axis=1), [0, 2]).resample([1], slerp(order="wxyz"))
        assert np.allclose(np.roll(other.values(), -1, axis=1), one)

    @pytest.mark.parametrize("apart", [0, 1e-15, 1e-9, 1e-7, 1e-4])
    def test_nearly_parallel(self, apart: float) -> None:
        signal = ArraySignal([turned(30), turned(30 + apart)], [0, 4])
        values = signal.resample([1, 2, 3], slerp()).values()
        assert np.isfinite(values).all()
        assert np.allclose(np.linalg.norm(values, axis=1), 1, atol=1e-15)
        assert [degrees(v) for v in values] == pytest.approx(
            [30 + apart * k / 4 for k in (1, 2, 3)], abs=1e-12
        )

    def test_result_is_normalized(self) -> None:
        signal = ArraySignal(np.array([[0, 0, 0, 3e-30], [0, 0, 2e30, 0]], np.float32), [0, 2])
        values = signal.resample([0, 1, 2], slerp()).values()
        assert values.dtype == np.float32
        assert np.allclose(values, [IDENTITY, turned(90), turned(180)], atol=1e-6)

    def test_several_quaternions_in_one_value(self) -> None:
        ends = [[turned(0), turned(10)], [turned(90), turned(-10)]]
        sampled = ArraySignal(ends, [0, 2]).resample([1], slerp())
        assert [degrees(q) for q in sampled[0][0]] == pytest.approx([45, 0])

    def test_zero_and_nan_quaternions(self) -> None:
        signal = ArraySignal([IDENTITY, [0.0] * 4, [np.nan] * 4], [0, 10, 20], name="pose")
        assert signal.resample([0], slerp())[0][0].tolist() == IDENTITY
        with pytest.raises(
            InvalidError, match="'pose': cannot interpolate a quaternion of only zeros"
        ):
            signal.resample([5], slerp()).values()
        assert np.isnan(signal.resample([20], slerp()).values()).all()

    @pytest.mark.parametrize("shape", [(), (3,), (4, 3), (0,)])
    def test_last_dimension_must_be_four(self, shape: tuple[int, ...]) -> None:
        signal = ArraySignal(np.zeros((2, *shape)), [1, 2], name="pose")
        with pytest.raises(ValueError, match="'pose' has values of the shape"):
            signal.resample([1], slerp())

    def test_unknown_component_order_raises(self) -> None:
        with pytest.raises(InvalidError, match="wzyx"):
            slerp("wzyx")  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["hold", "linear", "nearest"])
def test_no_records_and_no_times(policy: str) -> None:
    empty = ArraySignal(np.empty(0), [], name="e")
    assert len(empty.resample([], policy)) == 0
    assert len(numbers().resample([], policy)) == 0
    assert numbers().resample([], policy).values().shape == (0,)
    with pytest.raises(NoValueError, match="'e' has no value at 1: it has no records"):
        empty.resample([1], policy)


def test_times_must_be_integers_along_one_axis() -> None:
    for wrong in ([1.5], 10, [[10]], "10"):
        with pytest.raises(InvalidTypeError):
            numbers().resample(wrong, "linear")
    with pytest.raises(MaskError):
        numbers().resample([True], "linear")


def test_policies_by_name_and_as_objects() -> None:
    assert policy_of("nearest") == nearest()
    assert policy_of("slerp") == slerp()
    assert isinstance(policy_of("hold"), Policy)
    chosen = slerp("wxyz")
    assert policy_of(chosen) is chosen
    for policy in (nearest(5), slerp("wxyz"), policy_of("hold"), policy_of("linear")):
        assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301 - our own data
    assert repr(nearest(5)) == "nearest(5)"
    with pytest.raises(InvalidError, match="'cubic'") as caught:
        policy_of("cubic")
    assert '"linear"' in (caught.value.hint or "")
    with pytest.raises(InvalidTypeError) as forgotten:
        numbers().resample([10], nearest)  # type: ignore[arg-type]
    assert forgotten.value.hint == "call it: nearest(), slerp()"


def test_episode_policy_per_signal() -> None:
    episode = EpisodeView({"a": numbers(), "b": ArraySignal(["x", "y"], [5, 25], name="b")})
    sampled = episode.resample([30, 12], {"a": "linear", "b": nearest(7)})
    assert sampled["a"].values().tolist() == [3.5, 1.4]
    assert sampled["b"].values().tolist() == ["y", "x"]
    assert episode.resample([30], {"a": "linear"})["b"].values().tolist() == ["y"]
