// A process that is suspended, as on a laptop that sleeps: when it resumes, its timers are overdue,
// but the replies already wait in the socket. The thread is blocked right after a frame was sent.

import { WebSocket } from "ws";
import { connect, group, type Status } from "../../src/client/index.ts";
import { CLIENT_OPS } from "../../src/protocol/native/ops.ts";
import { spawnBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";

const KINDS = ["connect", "send", "history", "ping"] as const;

/** Position of the operation in a frame, after the header of the array. */
const OP_AT = 1;

t.test(
  "replies that arrived while the process was suspended prevent time-outs when it resumes",
  async (t) => {
    const broker = await spawnBroker(t);
    await broker.call("/user/token", { uid: "amy", token: "amy-token", device_flag: 1 });
    await broker.call("/channel", { channel_id: "g", channel_type: 2, subscribers: ["amy"] });
    for (const [share, limitMs] of [
      [0.1, 2000],
      [0.5, 2000],
      [3, 400],
    ] as const) {
      const blocked = new Set<string>();
      class SleepingSocket extends WebSocket {
        override send(frame: Uint8Array): void {
          super.send(frame);
          const kind = KINDS.find((name) => CLIENT_OPS[name] === frame[OP_AT]);
          if (kind === undefined || blocked.has(kind)) return;
          blocked.add(kind);
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, share * limitMs);
        }
      }
      const client = connect({
        url: `ws://127.0.0.1:${broker.clientPort}`,
        uid: "amy",
        token: "amy-token",
        webSocket: SleepingSocket,
        timeouts: {
          ...{ connectMs: limitMs, requestMs: limitMs, sendMs: limitMs },
          ...{ pingMs: 20, pongMs: limitMs },
        },
      });
      t.teardown(() => client.close());
      const statuses: Status[] = [];
      const errors: string[] = [];
      client.on("status", (status) => statuses.push(status));
      client.on("error", ({ code }) => errors.push(code));
      await client.ready();
      await client.send(group("g"), "x");
      await client.history(group("g"));
      while (!blocked.has("ping")) await new Promise((resolve) => setTimeout(resolve, 10));
      await client.history(group("g"));
      await client.close();
      t.same(statuses, ["online", "closed"], `asleep for ${share} of each limit`);
      t.same(errors, []);
      t.equal(blocked.size, KINDS.length);
    }
  },
);
