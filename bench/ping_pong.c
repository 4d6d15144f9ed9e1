/* A raw TCP ping-pong over loopback: the floor that the link is compared with. It has no deadlines, no handshake and no plans.
 *
 * Usage: ping_pong spin|sleep|adaptive BYTES ROUNDS CHECKSUM CPU_A CPU_B COMPUTE_US CONNECTIONS
 * A parent and a forked child exchange a 32-byte header and BYTES of payload, one call each way; with CHECKSUM 1 each end computes
 * CRC-32C of what it sends and of what it received; with COMPUTE_US each end computes so long before it sends. With CONNECTIONS 2
 * each way has a connection of its own, as in a ring. Prints one round trip in microseconds a line; what the other end's
 * computing took by the wall, which comes back ahead of the payload, is taken off.
 * "adaptive" is the smallest program of its kind: it sleeps through the running mean of its waits less 400 us, and spins after that.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

static int spin;
static int adaptive;
static int checksum;
static double mean_us;

static double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* One CRC instruction takes three cycles but one can be begun each cycle, so three runs of a block are computed side by side and then joined: the
 * first two are moved past the bytes that follow them by a table of what so many zero bytes make of each byte of a checksum. */
enum { RUN = 1024 };
static uint32_t moved[4][256];

static uint32_t times_matrix(const uint32_t *matrix, uint32_t vector) {
    uint32_t sum = 0;
    for (; vector != 0; vector >>= 1, matrix++)
        if (vector & 1) sum ^= *matrix;
    return sum;
}

static void make_moved(void) {
    uint32_t power[32], square[32];
    power[0] = 0x82F63B78u; /* CRC-32C's polynomial, reflected: what one zero bit does */
    for (int bit = 1; bit < 32; bit++) power[bit] = 1u << (bit - 1);
    for (size_t bits = 1; bits < RUN * 8; bits *= 2) {
        for (int bit = 0; bit < 32; bit++) square[bit] = times_matrix(power, power[bit]);
        memcpy(power, square, sizeof power);
    }
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++) moved[byte][value] = times_matrix(power, value << (8 * byte));
}

static uint32_t move_past_run(uint32_t crc) {
    return moved[0][crc & 0xFF] ^ moved[1][crc >> 8 & 0xFF] ^ moved[2][crc >> 16 & 0xFF] ^ moved[3][crc >> 24];
}

#if defined(__x86_64__)
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_BYTE(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#define CRC_WORD(crc, word) _mm_crc32_u64(crc, word)
#elif defined(__ARM_FEATURE_CRC32)
#define CRC_TARGET
#define CRC_BYTE(crc, byte) __crc32cb((uint32_t)(crc), byte)
#define CRC_WORD(crc, word) __crc32cd((uint32_t)(crc), word)
#else
#error "this machine has no CRC-32C instruction that the reference knows"
#endif

static uint64_t word_at(const unsigned char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

CRC_TARGET
static uint32_t crc32c(const unsigned char *bytes, size_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    size_t at = 0;
    for (; at + 3 * RUN <= size; at += 3 * RUN) {
        uint64_t second = 0, third = 0;
        for (size_t word = at; word < at + RUN; word += 8) {
            crc = CRC_WORD(crc, word_at(bytes + word));
            second = CRC_WORD(second, word_at(bytes + word + RUN));
            third = CRC_WORD(third, word_at(bytes + word + 2 * RUN));
        }
        crc = move_past_run((uint32_t)crc) ^ second;
        crc = move_past_run((uint32_t)crc) ^ third;
    }
    for (; at + 8 <= size; at += 8) crc = CRC_WORD(crc, word_at(bytes + at));
    for (; at < size; at++) crc = CRC_BYTE(crc, bytes[at]);
    return (uint32_t)crc ^ 0xFFFFFFFFu;
}

static void wait_for(int fd, short events) {
    if (spin) return;
    struct pollfd entry = {.fd = fd, .events = events};
    if (poll(&entry, 1, -1) < 0 && errno != EINTR) die("poll");
}

/* Moves the header and the payload, the first DONE bytes of both having moved before, with one call. */
static ssize_t move(int fd, unsigned char *header, unsigned char *payload, size_t size, size_t done, int sends) {
    struct iovec parts[2];
    int count = 0;
    if (done < 32) parts[count++] = (struct iovec){header + done, 32 - done};
    size_t from = done < 32 ? 0 : done - 32;
    parts[count++] = (struct iovec){payload + from, size - from};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    return sends ? sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) : recvmsg(fd, &message, MSG_DONTWAIT);
}

static void move_frame(int fd, unsigned char *header, unsigned char *payload, size_t size, int sends) {
    size_t done = 0;
    while (done < 32 + size) {
        ssize_t count = move(fd, header, payload, size, done, sends);
        if (count > 0) {
            done += (size_t)count;
        } else if (count == 0) {
            fprintf(stderr, "ping_pong: the other end closed\n");
            exit(1);
        } else if (errno == EAGAIN) {
            wait_for(fd, sends ? POLLOUT : POLLIN);
        } else if (errno != EINTR) {
            die(sends ? "sendmsg" : "recvmsg");
        }
    }
}

static void send_frame(int fd, unsigned char *header, unsigned char *payload, size_t size) {
    if (checksum) {
        uint32_t crc = crc32c(payload, size);
        memcpy(header + 24, &crc, 4);
    }
    move_frame(fd, header, payload, size, 1);
}

/* The first part of a wait asleep, unless something comes before; the rest is spun through by the caller. */
static void sleep_through(int fd, double us) {
    if (us <= 0) return;
    struct timespec limit = {.tv_sec = (time_t)(us / 1e6), .tv_nsec = (long)(us * 1e3) % 1000000000L};
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    if (ppoll(&entry, 1, &limit, NULL) < 0 && errno != EINTR) die("ppoll");
}

static void receive_frame(int fd, unsigned char *header, unsigned char *payload, size_t size) {
    if (adaptive) {
        double before = now_us();
        sleep_through(fd, mean_us - 400);
        while (recv(fd, header, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {}
        mean_us += (now_us() - before - mean_us) / 8;
    }
    move_frame(fd, header, payload, size, 0);
    uint32_t crc = 0;
    memcpy(&crc, header + 24, 4);
    if (checksum && crc32c(payload, size) != crc) {
        fprintf(stderr, "ping_pong: checksum differs\n");
        exit(1);
    }
}

static void pin(int cpu) {
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) die("sched_setaffinity");
}

static double cpu_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static int ready(int fd, const char *what) {
    int one = 1;
    if (fd < 0) die(what);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int dial(const struct sockaddr_in *address) {
    int fd = ready(socket(AF_INET, SOCK_STREAM, 0), "socket");
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) die("connect");
    return fd;
}

/* What an engine does between two hops: so much of a core's time, however long others make it. */
static void compute(double us) {
    if (us <= 0) return;
    for (double end = cpu_us() + us; cpu_us() < end;) {}
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: ping_pong spin|sleep|adaptive BYTES ROUNDS CHECKSUM CPU_A CPU_B COMPUTE_US CONNECTIONS\n");
        return 2;
    }
    adaptive = strcmp(argv[1], "adaptive") == 0;
    spin = adaptive || strcmp(argv[1], "spin") == 0;
    size_t size = strtoul(argv[2], NULL, 10);
    long rounds = strtol(argv[3], NULL, 10);
    checksum = atoi(argv[4]);
    double compute_us = strtod(argv[7], NULL);
    int both = atoi(argv[8]) == 2;
    make_moved();
    if (crc32c((const unsigned char *)"123456789", 9) != 0xE3069283u) die("crc32c");
    unsigned char header[32] = {'S', 'L', 'N', 'K'};
    unsigned char *payload = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    memset(payload, 7, size);

    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 2) != 0) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        pin(atoi(argv[6]));
        int in = ready(accept(listener, NULL, NULL), "accept");
        int out = both ? ready(accept(listener, NULL, NULL), "accept") : in;
        for (long round = 0; round < rounds; round++) {
            receive_frame(in, header, payload, size);
            double before = now_us();
            compute(compute_us);
            if (compute_us > 0) {
                before = now_us() - before;
                memcpy(payload, &before, sizeof before);
            }
            send_frame(out, header, payload, size);
        }
        _exit(0);
    }
    pin(atoi(argv[5]));
    int out = dial(&address);
    int in = both ? dial(&address) : out;
    double *times = malloc((size_t)rounds * sizeof *times);
    for (long round = 0; round < rounds; round++) {
        compute(compute_us);
        double before = now_us();
        send_frame(out, header, payload, size);
        receive_frame(in, header, payload, size);
        times[round] = now_us() - before;
        if (compute_us > 0) {
            double computed;
            memcpy(&computed, payload, sizeof computed);
            times[round] -= computed;
        }
    }
    for (long round = 0; round < rounds; round++) printf("%.3f\n", times[round]);
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
}
