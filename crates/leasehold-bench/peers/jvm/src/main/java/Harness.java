import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Drives Redisson. Arguments and output: see ../README.md. */
public final class Harness {
    /** Redisson's own number of connections, where all tasks share them. */
    private static final int SHARED_CONNECTIONS = 64;
    /** Without contention, for as long as the compiler of this language needs. */
    private static final long WARM_UP_NS = 1_000_000_000;

    private final boolean contending;
    private final long lengthNs;
    private final long holdMs;
    private final Ledger ledger = new Ledger();

    private Harness(String work, String seconds, String holdMs) {
        this.contending = work.equals("contend");
        this.lengthNs = (long) (Double.parseDouble(seconds) * 1e9);
        this.holdMs = Long.parseLong(holdMs);
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 8) {
            throw new IllegalArgumentException("eight arguments are needed; see the README");
        }
        Harness harness = new Harness(args[2], args[4], args[5]);
        boolean best = args[6].equals("best");
        Clients clients = new Clients(args[1].split(","), Long.parseLong(args[7]), best);
        harness.run(clients, Integer.parseInt(args[3]));
    }

    private void run(Clients clients, int tasks) throws InterruptedException {
        String name = "redisson/" + ProcessHandle.current().pid();
        List<RedissonClient> shared = contending ? null : clients.connect(SHARED_CONNECTIONS);
        CountDownLatch ready = new CountDownLatch(tasks);
        CountDownLatch go = new CountDownLatch(1);
        List<Thread> threads = new ArrayList<>();
        for (int who = 0; who < tasks; who++) {
            int number = who;
            List<RedissonClient> nodes = contending ? clients.connect(1) : shared;
            RLock own = clients.lock(nodes, name + "/" + who);
            RLock lock = contending ? clients.lock(nodes, name) : own;
            threads.add(new Thread(() -> task(number, own, lock, ready, go)));
        }
        threads.forEach(Thread::start);
        ready.await();
        long start = System.nanoTime();
        go.countDown();
        if (contending) {
            // Who waits for a lock at the end is not waited for.
            Thread.sleep(lengthNs / 1_000_000);
        } else {
            for (Thread thread : threads) {
                thread.join();
            }
        }
        System.out.println(ledger.line(System.nanoTime() - start));
        System.out.flush();
        if (ledger.isBroken()) {
            System.err.println("two held the lock at once");
        }
        Runtime.getRuntime().halt(ledger.isBroken() ? 1 : 0);
    }

    private void task(int who, RLock own, RLock lock, CountDownLatch ready, CountDownLatch go) {
        long warm = System.nanoTime() + WARM_UP_NS;
        do {
            own.lock();
            own.unlock();
        } while (System.nanoTime() < warm);
        ready.countDown();
        try {
            go.await();
            long end = System.nanoTime() + lengthNs;
            while (System.nanoTime() < end) {
                pair(who, lock);
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void pair(int who, RLock lock) throws InterruptedException {
        ledger.ask(who);
        try {
            lock.lock();
        } catch (RuntimeException gaveUp) {
            ledger.failed();
            return;
        }
        ledger.enter(who, contending);
        if (contending) {
            long entered = System.nanoTime();
            Thread.sleep(holdMs);
            ledger.leave(System.nanoTime() - entered);
        }
        try {
            lock.unlock();
            ledger.paired();
        } catch (RuntimeException failed) {
            ledger.failed();
        }
    }
}
