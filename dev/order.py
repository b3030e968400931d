# dev/order.py: the order of the data, a second implementation of lib/rng.h's rng_permute and of the
# micro-batches of dataloader.h. The reference runs use it; test/reference/order.txt, made by running this
# file, is what the C form is tested against.
M = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD & M
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53 & M
    return x ^ (x >> 33)


def permute(seed, epoch, n, i):
    """Where element i of [0, n) goes in this epoch's shuffle: Feistel network with cycle walking."""
    half = 1
    while n > 1 << (2 * half):
        half += 1
    mask = (1 << half) - 1
    key = mix((mix((seed + GOLDEN) & M) + epoch) & M)
    while True:
        left, right = i >> half, i & mask
        for r in range(8):
            left, right = right, left ^ (mix((key + r * GOLDEN + right) & M) & mask)
        i = left << half | right
        if i < n:
            return i


def micro_batch(samples, B, m, seed):
    """Rows m*B .. m*B+B-1 of the endless shuffled order of samples (n, T + 1)."""
    n = len(samples)
    return samples[[permute(seed, g // n, n, g % n) for g in range(m * B, m * B + B)]]


if __name__ == "__main__":
    print("# seed epoch n i permute(seed, epoch, n, i)")
    for seed, epoch, n in [(42, 0, 10), (42, 1, 10), (1, 0, 1), (7, 3, 2), (2**64 - 1, 2**40, 17),
                           (1337, 5, 1000003), (3, 0, 2**33 + 5), (9, 1, 2**62)]:  # fmt: skip
        for i in sorted({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, n // 2, n - 2, n - 1}):
            if 0 <= i < n:
                print(seed, epoch, n, i, permute(seed, epoch, n, i))
