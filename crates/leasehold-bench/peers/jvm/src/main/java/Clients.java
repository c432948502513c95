import io.netty.channel.nio.NioEventLoopGroup;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Makes clients. All share their threads: each would have dozens of its own otherwise. */
final class Clients {
    private static final int THREADS = 16;
    private final NioEventLoopGroup network = new NioEventLoopGroup(2);
    private final ExecutorService executor = Executors.newFixedThreadPool(THREADS);
    private final String[] urls;
    private final long ttlMs;
    private final boolean best;

    Clients(String[] urls, long ttlMs, boolean best) {
        this.urls = urls;
        this.ttlMs = ttlMs;
        this.best = best;
    }

    /** A client of every server, with at most so many connections to each. */
    List<RedissonClient> connect(int connections) {
        List<RedissonClient> nodes = new ArrayList<>();
        for (String url : urls) {
            URI uri = URI.create(url);
            Config config = new Config();
            config.setEventLoopGroup(network).setExecutor(executor);
            config.setLockWatchdogTimeout(ttlMs);
            config.useSingleServer()
                    .setAddress("redis://" + uri.getAuthority())
                    .setDatabase(Integer.parseInt(uri.getPath().substring(1)))
                    .setConnectionPoolSize(connections)
                    .setConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionPoolSize(connections)
                    .setSubscriptionConnectionMinimumIdleSize(1);
            nodes.add(Redisson.create(config));
        }
        return nodes;
    }

    /** On one server its lock, on several its multi-lock over a lock of each. */
    RLock lock(List<RedissonClient> nodes, String name) {
        RLock[] locks = nodes.stream().map(node -> lock(node, name)).toArray(RLock[]::new);
        return locks.length == 1 ? locks[0] : new RedissonRedLock(locks);
    }

    /**
     * Of its usual locks, its fair ones and its spinning ones (with 1, 2, 5 and 10 ms; on
     * several nodes 2 ms), the fair ones hand over most often.
     */
    private RLock lock(RedissonClient node, String name) {
        return best ? node.getFairLock(name) : node.getLock(name);
    }
}
