package main

import (
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
)

// What all tasks write down together.
type ledger struct {
	sync.Mutex
	pairs, handovers, errors int
	held, waited, longest    time.Duration
	waits, last              int
	waiting                  map[int]time.Time
	inside                   bool
}

func (l *ledger) pair(who int, mutex *redsync.Mutex, contending bool, hold time.Duration) {
	l.ask(who)
	if err := mutex.Lock(); err != nil {
		l.failed()
		return
	}
	l.enter(who, contending)
	if contending {
		entered := time.Now()
		time.Sleep(hold)
		l.leave(time.Since(entered))
	}
	if ok, err := mutex.Unlock(); !ok || err != nil {
		l.failed()
		return
	}
	l.Lock()
	defer l.Unlock()
	l.pairs++
}

func (l *ledger) ask(who int) {
	l.Lock()
	defer l.Unlock()
	// A wait goes on when an attempt gives up.
	if _, waits := l.waiting[who]; !waits {
		l.waiting[who] = time.Now()
	}
}

func (l *ledger) failed() {
	l.Lock()
	defer l.Unlock()
	l.errors++
}

func (l *ledger) enter(who int, contending bool) {
	l.Lock()
	defer l.Unlock()
	l.wait(time.Since(l.waiting[who]))
	delete(l.waiting, who)
	if !contending {
		return
	}
	if l.inside {
		fail("two held the lock at once")
	}
	l.inside = true
	if l.last >= 0 && l.last != who {
		l.handovers++
	}
	l.last = who
}

func (l *ledger) wait(time time.Duration) {
	l.waits++
	l.waited += time
	l.longest = max(l.longest, time)
}

func (l *ledger) leave(held time.Duration) {
	l.Lock()
	defer l.Unlock()
	l.inside = false
	l.held += held
}

func (l *ledger) line(length time.Duration) map[string]any {
	l.Lock()
	defer l.Unlock()
	for _, since := range l.waiting {
		l.wait(time.Since(since))
	}
	ms := func(time time.Duration) float64 { return time.Seconds() * 1e3 }
	return map[string]any{
		"length_ms":       ms(length),
		"pairs":           l.pairs,
		"handovers":       l.handovers,
		"errors":          l.errors,
		"mean_wait_ms":    ms(l.waited) / float64(max(l.waits, 1)),
		"longest_wait_ms": ms(l.longest),
		"held_ms":         ms(l.held) / float64(max(l.pairs, 1)),
	}
}
