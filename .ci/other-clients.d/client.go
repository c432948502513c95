// Locks with redsync over go-redis, as told on standard input. See .ci/other-clients.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/go-redsync/redsync/v4" {
			return module.Version
		}
	}
	return "of an unknown version"
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

func main() {
	options, err := goredislib.ParseURL(os.Args[2])
	if err != nil {
		panic(err)
	}
	locks := redsync.New(goredis.NewPool(goredislib.NewClient(options)))
	var held *redsync.Mutex
	fmt.Println("ready redsync", version())

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if words[0] == "lock" {
			ttl, err := strconv.Atoi(words[2])
			if err != nil {
				panic(err)
			}
			expiry := redsync.WithExpiry(time.Duration(ttl) * time.Millisecond)
			mutex := locks.NewMutex(words[1], expiry, redsync.WithTries(1))
			err = mutex.Lock()
			if err == nil {
				held = mutex
				fmt.Println("locked")
			} else if isTaken(err) {
				fmt.Println("taken")
			} else {
				fmt.Println("error", err)
			}
			continue
		}
		released, err := held.Unlock()
		if released {
			fmt.Println("released")
		} else if err == nil || isTaken(err) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
			fmt.Println("refused")
		} else {
			fmt.Println("error", err)
		}
	}
}
