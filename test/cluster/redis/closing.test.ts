// A node that is closed while servers of its Redis Cluster are away leaves nothing behind: no timer
// and no connection keeps the process alive.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import t from "tap";
import { TYPESCRIPT_ARGS, tieToParent } from "../../support/child.ts";
import { type RedisClusterServers, redisSettings, startRedisCluster } from "../../support/redis.ts";

const FILE = fileURLToPath(new URL("./closing-process.ts", import.meta.url));
/** Until every link looks at a map of slots that nobody answers for. */
const AWAY_MS = 2500;
/** Longer than every time-out of a call. */
const ENDED_MS = 60_000;

interface Outage {
  begin(servers: RedisClusterServers): Promise<void>;
  end(servers: RedisClusterServers): void;
}

const OUTAGES: Readonly<Record<string, Outage>> = {
  "all servers hang": {
    async begin({ primaries }) {
      for (const one of primaries) one.signal("SIGSTOP");
    },
    end({ primaries }) {
      for (const one of primaries) one.signal("SIGCONT");
    },
  },
  "a primary is dead": {
    async begin({ primaries }) {
      await primaries[2]?.stop("SIGKILL");
    },
    end() {},
  },
};

for (const [what, outage] of Object.entries(OUTAGES))
  t.test(`a process ends after it closed its node while ${what}`, async (t) => {
    const servers = await startRedisCluster(t);
    const settings = redisSettings(servers.url, { timeoutMs: 1000 });
    const args = [...TYPESCRIPT_ARGS, FILE, JSON.stringify(settings)];
    const child = spawn(...tieToParent(process.execPath, args), {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
    });
    t.teardown(() => child.kill("SIGKILL"));
    const said = async (word: string) => t.same(await once(child, "message"), [word, undefined]);
    await said("open");
    await outage.begin(servers);
    await pause(AWAY_MS);
    child.send("listen");
    await said("listening");
    await pause(200); // its calls for topics fail and are tried again
    const exited = once(child, "exit");
    child.send("close");
    await said("closed");
    outage.end(servers);
    const late = pause(ENDED_MS, undefined, { ref: false });
    const end = await Promise.race([exited, late]);
    t.same(end, [0, null], "of itself");
  });
