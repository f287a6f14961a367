/*
 * thread.h: mutexes, thread-local variables and time, on pthreads. Knows no policy.
 */
#ifndef FL_BASE_THREAD_H
#define FL_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

/* A thread-local variable. */
#define FL_THREAD_LOCAL _Thread_local

/* The same for the few bytes that hot paths read: one instruction to reach, but taken from a small
 * reserve that all libraries of a process share. Keep such variables to a few words in all. */
#define FL_THREAD_LOCAL_HOT _Thread_local __attribute__((tls_model("initial-exec")))

typedef pthread_mutex_t fl__mutex;
#define FL__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER

/* A default mutex that was initialised properly can only fail by being misused, which TSan and the
 * stress tests would show; the results are therefore not passed on. */
static inline void fl__lock(fl__mutex *mutex) {
    (void)pthread_mutex_lock(mutex);
}

static inline void fl__unlock(fl__mutex *mutex) {
    (void)pthread_mutex_unlock(mutex);
}

/* Nanoseconds of a clock that never goes back; only differences mean something. */
static inline uint64_t fl__now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* The time at which a pthread_cond_timedwait that begins now ends. */
static inline struct timespec fl__deadline_in_ms(int32_t ms) {
    struct timespec end;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += ms / 1000;
    end.tv_nsec += (long)(ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_nsec -= 1000000000;
        end.tv_sec++;
    }
    return end;
}

/* pthread_create of a thread that takes no signals: those are for the program's own threads. */
static inline int fl__thread_start(pthread_t *thread, void *(*work)(void *argument),
                                   void *argument) {
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, work, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
