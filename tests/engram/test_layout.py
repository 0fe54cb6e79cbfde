from sparkserve.engram.layout import column_bounds, column_sizes

# The published columns of DeepSeek-V4.1-Flash (layers 1 and 14), order-major.
LAYER_1 = """
16000057 16000079 16000081 16000097 16000121 16000129 16000133 16000183
16000189 16000207 16000211 16000253 16000277 16000289 16000307 16000321
16000339 16000381 16000393 16000399 16000403 16000409 16000447 16000463
"""
LAYER_14 = """
16000477 16000487 16000499 16000507 16000511 16000573 16000609 16000627
16000667 16000669 16000693 16000697 16000711 16000729 16000759 16000769
16000781 16000799 16000813 16000819 16000841 16000877 16000879 16000889
"""


def test_columns_equal_the_published_primes_and_sum_to_the_tables():
    sizes = column_sizes(layers=2, max_ngram=4, heads=8, vocab_size=16_000_000)
    assert [" ".join(map(str, layer)) for layer in sizes] == [
        " ".join(LAYER_1.split()),
        " ".join(LAYER_14.split()),
    ]
    bounds = [column_bounds(layer) for layer in sizes]
    assert [each[-1] for each in bounds] == [384006168, 384016682]
    assert bounds[0][::8] == (0, 128000880, 256002934, 384006168)


def test_small_searches_give_the_small_primes():
    assert column_sizes(layers=1, max_ngram=3, heads=3, vocab_size=0) == ((2, 3, 5, 7, 11, 13),)
    # 561 = 3 * 11 * 17 and 2047 = 23 * 89 fool weaker primality tests.
    assert column_sizes(layers=1, max_ngram=2, heads=2, vocab_size=560) == ((563, 569),)
    assert column_sizes(layers=1, max_ngram=2, heads=1, vocab_size=2047) == ((2053,),)


def test_bounds_of_nothing_are_one_zero():
    assert column_bounds(()) == (0,)
