import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/** What all tasks write down together. Times are in nanoseconds. */
final class Ledger {
    private final Map<Integer, Long> waiting = new HashMap<>();
    private long pairs, handovers, errors, held, waits, waited, longest;
    private int last = -1;
    private boolean inside, broken;

    /** A wait goes on when an attempt gives up. */
    synchronized void ask(int who) {
        waiting.putIfAbsent(who, System.nanoTime());
    }

    synchronized void failed() {
        errors++;
    }

    synchronized void enter(int who, boolean contending) {
        note(System.nanoTime() - waiting.remove(who));
        if (!contending) {
            return;
        }
        broken |= inside;
        inside = true;
        handovers += last >= 0 && last != who ? 1 : 0;
        last = who;
    }

    synchronized void leave(long time) {
        inside = false;
        held += time;
    }

    synchronized void paired() {
        pairs++;
    }

    synchronized boolean isBroken() {
        return broken;
    }

    /** The line of JSON; those who still wait are counted. */
    synchronized String line(long length) {
        long now = System.nanoTime();
        waiting.values().forEach(since -> note(now - since));
        return String.format(
                Locale.ROOT,
                "{\"length_ms\":%f,\"pairs\":%d,\"handovers\":%d,\"errors\":%d,"
                        + "\"mean_wait_ms\":%f,\"longest_wait_ms\":%f,\"held_ms\":%f}",
                length / 1e6,
                pairs,
                handovers,
                errors,
                waited / 1e6 / Math.max(waits, 1),
                longest / 1e6,
                held / 1e6 / Math.max(pairs, 1));
    }

    private void note(long time) {
        waits++;
        waited += time;
        longest = Math.max(longest, time);
    }
}
