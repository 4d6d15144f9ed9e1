/* Large chunks one way over loopback with plain send and recv: what the link's bulk lane is compared with. It has no deadlines, no handshake and no plans.
 *
 * Usage: stream BYTES CHUNKS CHECKSUM CPU_A CPU_B
 * A parent sends CHUNKS times a 32-byte header and BYTES of payload, from two buffers in turn; a forked child receives each into one of two buffers
 * and answers every chunk with one byte. With CHECKSUM 1 the parent computes CRC-32C of a chunk before it sends it and the child of each piece
 * when it has come. Prints the congestion control and the seconds from the first send to the last answer.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#if defined(__x86_64__)
#define CRC_TARGET __attribute__((target("sse4.2")))
#else
#define CRC_TARGET
#endif

enum { HEADER = 32, PART = 512 << 10 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

CRC_TARGET static uint64_t step(uint64_t crc, uint64_t word) {
#if defined(__x86_64__)
    return _mm_crc32_u64(crc, word);
#elif defined(__ARM_FEATURE_CRC32)
    return __crc32cd((uint32_t)crc, word);
#else
    return crc ^ word;
#endif
}

/* Three runs side by side keep the instruction's pipeline full; the three are mixed and not joined, which costs the same. */
CRC_TARGET static uint64_t sum(uint64_t crc, const unsigned char *bytes, size_t count) {
    const uint64_t *words = (const uint64_t *)bytes;
    size_t third = count / 24;
    uint64_t a = crc, b = 0, c = 0;
    for (size_t at = 0; at < third; at++) {
        a = step(a, words[at]);
        b = step(b, words[third + at]);
        c = step(c, words[2 * third + at]);
    }
    return a ^ b << 1 ^ c << 2;
}

static void pin(int cpu) {
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void send_all(int fd, const unsigned char *bytes, size_t count) {
    while (count > 0) {
        ssize_t gone = send(fd, bytes, count, MSG_NOSIGNAL);
        if (gone <= 0) die("send");
        bytes += gone;
        count -= (size_t)gone;
    }
}

static void receive_all(int fd, unsigned char *bytes, size_t count) {
    while (count > 0) {
        ssize_t came = recv(fd, bytes, count, 0);
        if (came <= 0) die("recv");
        bytes += came;
        count -= (size_t)came;
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    size_t bytes = strtoull(argv[1], NULL, 10);
    int chunks = atoi(argv[2]), checksum = atoi(argv[3]), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1)) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    unsigned char *buffers[2], header[HEADER] = {0}, answer;
    for (int at = 0; at < 2; at++) {
        if (posix_memalign((void **)&buffers[at], 64, bytes)) die("memory");
        memset(buffers[at], at + 1, bytes);
    }
    pid_t child = fork();
    if (child == 0) {
        pin(atoi(argv[5]));
        int fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (int at = 0; at < chunks; at++) {
            uint64_t crc = 0;
            receive_all(fd, header, HEADER);
            for (size_t done = 0; done < bytes; done += PART) {
                size_t part = bytes - done < PART ? bytes - done : PART;
                receive_all(fd, buffers[at % 2] + done, part);
                if (checksum) crc = sum(crc, buffers[at % 2] + done, part);
            }
            answer = (unsigned char)crc;
            send_all(fd, &answer, 1);
        }
        _exit(0);
    }
    pin(atoi(argv[4]));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, length)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char control[16] = "";
    length = sizeof control - 1;
    getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &length);
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int at = 0; at < chunks; at++) {
        uint64_t crc = checksum ? sum(0, buffers[at % 2], bytes) : 0;
        memcpy(header + 8, &crc, sizeof crc);
        send_all(fd, header, HEADER);
        send_all(fd, buffers[at % 2], bytes);
    }
    for (int at = 0; at < chunks; at++) receive_all(fd, &answer, 1);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%s %.9f\n", control, (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec));
    waitpid(child, NULL, 0);
    return 0;
}
