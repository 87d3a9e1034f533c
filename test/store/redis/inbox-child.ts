// A process with command inboxes on Redis, for tests that kill it. Sends commands without end,
// several at once, and prints each command that it sends and each result on standard output, as
// lines of JSON. Usage: inbox-child.ts <url> <prefix> <name> <recipients>

import { RedisLink } from "../../../src/redis/link.ts";
import { createRedisInbox } from "../../../src/store/redis/steps/inbox.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";

const [url = "", prefix = "", name = "", count = "0"] = process.argv.slice(2);
const SENDERS = 6;

const print = (line: object): void => {
  process.stdout.write(`${JSON.stringify(line)}\n`);
};
const problem = (error: unknown) => print({ problem: String(error) });

const link = new RedisLink(redisSettings(url, { prefix }), {
  ...{ name, onError: problem },
});
const inbox = createRedisInbox({
  ...{ link, clock: Date.now, onError: problem, waitForReplicas: () => undefined },
  observeReplicas: () => async () => {},
  unreadable: new UnreadableRecords(problem),
  limits: {
    ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1000 },
    maxChannelMessages: 0,
    ...{ maxStreamBytes: 1000, maxInbox: 1_000_000, inboxTtlS: 86_400, logs: LOG_LIMITS },
  },
});
const recipients = Array.from({ length: Number(count) }, (_, i) => `u${i}`);

async function sendForever(sender: number): Promise<void> {
  for (let i = 0; ; i++) {
    const clientMsgNo = `${name}-${sender}-${i}`;
    const channel = { id: `g${sender}`, type: 2 } as const;
    print({ sent: clientMsgNo, channel: channel.id });
    const { messageId } = await inbox.appendCommand(
      commandOf({ clientMsgNo, channel, recipients }),
    );
    print({ answered: clientMsgNo, messageId });
  }
}

await link.start();
print({ started: process.pid });
await Promise.all(Array.from({ length: SENDERS }, (_, sender) => sendForever(sender)));
