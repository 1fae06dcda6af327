from qmq.broker.messages.rules import DEFAULT_RULES, QueueRules


def test_pause_after_a_failure_doubles_up_to_the_most() -> None:
    rules = QueueRules(redelivery_us_min=100, redelivery_us_max=1000)

    assert [rules.back_off(failures) for failures in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]


def test_pause_stays_at_the_most_however_often_a_message_fails() -> None:
    assert DEFAULT_RULES.back_off(10**6) == DEFAULT_RULES.redelivery_us_max


def test_rules_without_a_least_pause_have_none() -> None:
    assert QueueRules(redelivery_us_min=0).back_off(5) == 0


def test_least_pause_above_the_most_is_cut_to_it() -> None:
    assert QueueRules(redelivery_us_min=500, redelivery_us_max=100).back_off(1) == 100
