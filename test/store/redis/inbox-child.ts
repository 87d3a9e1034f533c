// A process with command inboxes on Redis, for tests that kill it. Sends commands without end, some
// under way at once, and says on its standard output, in lines of JSON, which it sends and which
// were answered. Usage: inbox-child.ts <url> <prefix> <name> <recipients>

import { RedisLink } from "../../../src/redis/link.ts";
import { createRedisInbox } from "../../../src/store/redis/steps/inbox.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { redisSettings } from "../../support/redis.ts";

const [url = "", prefix = "", name = "", count = "0"] = process.argv.slice(2);
const LANES = 6;

const say = (line: object): void => {
  process.stdout.write(`${JSON.stringify(line)}\n`);
};
const problem = (error: unknown) => say({ problem: String(error) });

const link = new RedisLink(redisSettings(url, { prefix }), {
  ...{ name, onError: problem },
});
const inbox = createRedisInbox({
  ...{ link, clock: Date.now, onError: problem, waitForReplicas: () => undefined },
  unreadable: new UnreadableRecords(problem),
  limits: {
    ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1000 },
    maxChannelMessages: 0,
    ...{ maxStreamBytes: 1000, maxInbox: 1_000_000, inboxTtlS: 86_400 },
  },
});
const recipients = Array.from({ length: Number(count) }, (_, i) => `u${i}`);

async function lane(lane: number): Promise<void> {
  for (let i = 0; ; i++) {
    const clientMsgNo = `${name}-${lane}-${i}`;
    const channel = { id: `g${lane}`, type: 2 } as const;
    say({ sent: clientMsgNo, channel: channel.id });
    const { messageId } = await inbox.appendCommand(
      commandOf({ clientMsgNo, channel, recipients }),
    );
    say({ answered: clientMsgNo, messageId });
  }
}

await link.start();
say({ started: process.pid });
await Promise.all(Array.from({ length: LANES }, (_, i) => lane(i)));
