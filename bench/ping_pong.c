/* A raw TCP ping-pong over loopback: the floor that the link is compared with. It has no deadlines, no handshake and no plans.
 *
 * Usage: ping_pong spin|sleep BYTES ROUNDS CHECKSUM CPU_A CPU_B
 * A parent and a forked child exchange a 32-byte header and BYTES of payload, one writev each way; with CHECKSUM 1 each end
 * computes CRC-32C of what it sends and of what it received. Prints one round trip in microseconds a line.
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
static int checksum;

static void die(const char *what) {
    perror(what);
    exit(1);
}

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
#endif
static uint32_t crc32c(const unsigned char *bytes, size_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    size_t at = 0;
#if defined(__x86_64__)
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; at < size; at++) crc = _mm_crc32_u8((uint32_t)crc, bytes[at]);
#elif defined(__ARM_FEATURE_CRC32)
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        crc = __crc32cd((uint32_t)crc, word);
    }
    for (; at < size; at++) crc = __crc32cb((uint32_t)crc, bytes[at]);
#else
#error "this machine has no CRC-32C instruction that the reference knows"
#endif
    return (uint32_t)crc ^ 0xFFFFFFFFu;
}

static void wait_for(int fd, short events) {
    if (spin) return;
    struct pollfd entry = {.fd = fd, .events = events};
    if (poll(&entry, 1, -1) < 0 && errno != EINTR) die("poll");
}

static void receive(int fd, unsigned char *bytes, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = recv(fd, bytes + done, size - done, MSG_DONTWAIT);
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0) {
            fprintf(stderr, "ping_pong: the other end closed\n");
            exit(1);
        } else if (errno == EAGAIN) {
            wait_for(fd, POLLIN);
        } else if (errno != EINTR) {
            die("recv");
        }
    }
}

static void send_frame(int fd, unsigned char *header, unsigned char *payload, size_t size) {
    if (checksum) {
        uint32_t crc = crc32c(payload, size);
        memcpy(header + 24, &crc, 4);
    }
    size_t done = 0;
    while (done < 32 + size) {
        struct iovec parts[2];
        int count = 0;
        if (done < 32) parts[count++] = (struct iovec){header + done, 32 - done};
        size_t from = done < 32 ? 0 : done - 32;
        parts[count++] = (struct iovec){payload + from, size - from};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            done += (size_t)sent;
        } else if (errno == EAGAIN) {
            wait_for(fd, POLLOUT);
        } else if (errno != EINTR) {
            die("sendmsg");
        }
    }
}

static void receive_frame(int fd, unsigned char *header, unsigned char *payload, size_t size) {
    receive(fd, header, 32);
    receive(fd, payload, size);
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

static double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: ping_pong spin|sleep BYTES ROUNDS CHECKSUM CPU_A CPU_B\n");
        return 2;
    }
    spin = strcmp(argv[1], "spin") == 0;
    size_t size = strtoul(argv[2], NULL, 10);
    long rounds = strtol(argv[3], NULL, 10);
    checksum = atoi(argv[4]);
    unsigned char header[32] = {'S', 'L', 'N', 'K'};
    unsigned char *payload = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    memset(payload, 7, size);

    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    int one = 1;
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        pin(atoi(argv[6]));
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (long round = 0; round < rounds; round++) {
            receive_frame(fd, header, payload, size);
            send_frame(fd, header, payload, size);
        }
        _exit(0);
    }
    pin(atoi(argv[5]));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    double *times = malloc((size_t)rounds * sizeof *times);
    for (long round = 0; round < rounds; round++) {
        double before = now_us();
        send_frame(fd, header, payload, size);
        receive_frame(fd, header, payload, size);
        times[round] = now_us() - before;
    }
    for (long round = 0; round < rounds; round++) printf("%.3f\n", times[round]);
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
}
