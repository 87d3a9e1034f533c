// No timer or connection of a closed node keeps its process alive, even if the node was closed
// while servers of its Redis Cluster were down.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import t from "tap";
import { TYPESCRIPT_ARGS, tieToParent } from "../../support/child.ts";
import { type RedisClusterServers, redisSettings, startRedisCluster } from "../../support/redis.ts";

const FILE = fileURLToPath(new URL("./closing-process.ts", import.meta.url));
/** Time within which every link tries to read the slots during the outage. */
const OUTAGE_MS = 2500;
/** Time within which the process must end. It is longer than every timeout of a call. */
const EXIT_TIMEOUT_MS = 60_000;

interface Outage {
  begin(servers: RedisClusterServers): Promise<void>;
  result(servers: RedisClusterServers): void;
}

const OUTAGES: Readonly<Record<string, Outage>> = {
  "all Redis servers hang": {
    async begin({ primaries }) {
      for (const primary of primaries) primary.signal("SIGSTOP");
    },
    result({ primaries }) {
      for (const primary of primaries) primary.signal("SIGCONT");
    },
  },
  "a Redis primary is dead": {
    async begin({ primaries }) {
      await primaries[2]?.stop("SIGKILL");
    },
    result() {},
  },
};

for (const [description, outage] of Object.entries(OUTAGES))
  t.test(`a process ends after its node is closed while ${description}`, async (t) => {
    const servers = await startRedisCluster(t);
    const settings = redisSettings(servers.url, { timeoutMs: 1000 });
    const args = [...TYPESCRIPT_ARGS, FILE, JSON.stringify(settings)];
    const child = spawn(...tieToParent(process.execPath, args), {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
    });
    t.teardown(() => child.kill("SIGKILL"));
    const expectMessage = async (word: string) =>
      t.same(await once(child, "message"), [word, undefined]);
    await expectMessage("open");
    await outage.begin(servers);
    await pause(OUTAGE_MS);
    child.send("listen");
    await expectMessage("listening");
    await pause(200); // the node's subscriptions fail and are retried
    const exited = once(child, "exit");
    child.send("close");
    await expectMessage("closed");
    outage.result(servers);
    const late = pause(EXIT_TIMEOUT_MS, undefined, { ref: false });
    const result = await Promise.race([exited, late]);
    t.same(result, [0, null], "the process ends by itself");
  });
