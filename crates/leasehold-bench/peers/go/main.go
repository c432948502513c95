// Drives redsync over go-redis. Arguments and output: see ../README.md.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

type order struct {
	client, work, settings string
	urls                   []string
	tasks                  int
	length, hold, ttl      time.Duration
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		fail(err)
	}
	return value
}

func read(args []string) order {
	if len(args) != 8 {
		fail("eight arguments are needed; see the README")
	}
	ms := func(text string) time.Duration {
		return time.Duration(number(text) * float64(time.Millisecond))
	}
	return order{
		client:   args[0],
		urls:     strings.Split(args[1], ","),
		work:     args[2],
		tasks:    int(number(args[3])),
		length:   time.Duration(number(args[4]) * float64(time.Second)),
		hold:     ms(args[5]),
		settings: args[6],
		ttl:      ms(args[7]),
	}
}

func connect(urls []string) *redsync.Redsync {
	var pools []redis.Pool
	for _, url := range urls {
		options, err := goredislib.ParseURL(url)
		if err != nil {
			fail(err)
		}
		pools = append(pools, goredis.NewPool(goredislib.NewClient(options)))
	}
	return redsync.New(pools...)
}

func (o order) mutex(locks *redsync.Redsync, name string) *redsync.Mutex {
	options := []redsync.Option{redsync.WithExpiry(o.ttl)}
	// A user who sets nothing gets 32 attempts, 50 to 250 ms apart.
	if o.settings == "best" {
		// Where it hands over most often, of 1, 2, 5 and 10 ms. On several nodes contenders
		// that come back too soon split the votes.
		delay := time.Millisecond
		if len(o.urls) > 1 {
			delay = 5 * time.Millisecond
		}
		options = append(options, redsync.WithRetryDelay(delay), redsync.WithTries(1000))
	}
	return locks.NewMutex(name, options...)
}

func main() {
	o := read(os.Args[1:])
	contending := o.work == "contend"
	// Without contention all tasks share one pool of connections.
	shared := connect(o.urls)
	var mutexes []*redsync.Mutex
	for who := range o.tasks {
		locks := shared
		if contending {
			locks = connect(o.urls)
		}
		name := fmt.Sprintf("redsync/%d", os.Getpid())
		own := o.mutex(locks, fmt.Sprintf("%s/%d", name, who))
		if err := own.Lock(); err != nil {
			fail(err)
		}
		if _, err := own.Unlock(); err != nil {
			fail(err)
		}
		if contending {
			own = o.mutex(locks, name)
		}
		mutexes = append(mutexes, own)
	}
	book := ledger{waiting: map[int]time.Time{}, last: -1}
	start := time.Now()
	var running sync.WaitGroup
	for who, mutex := range mutexes {
		running.Add(1)
		go func() {
			defer running.Done()
			for time.Since(start) < o.length {
				book.pair(who, mutex, contending, o.hold)
			}
		}()
	}
	if contending {
		// Who waits for a lock at the end is not waited for.
		time.Sleep(o.length)
	} else {
		running.Wait()
	}
	line, err := json.Marshal(book.line(time.Since(start)))
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}
