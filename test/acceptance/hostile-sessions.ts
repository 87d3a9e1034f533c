// A process that runs hostile sessions. Each session writes expensive frames as fast as its socket
// accepts them. It ignores the responses, and reconnects at once when it is closed.
// hostile-work.test.ts starts this process. The process prints "at work" when the attack has begun,
// and prints its counts as one line of JSON when stdin ends.

import { connect, type Socket } from "node:net";
import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { connectFrame } from "./attacker.ts";
import { OPCODES, upgradeRequest, webSocketFrame } from "./raw-socket.ts";

const READS_AND_BYTES = ["history", "presence", "send", "conversations"] as const;
const ALL = [...READS_AND_BYTES, "commandack", "command"] as const;

type Attack = (typeof ALL)[number];

/** Group whose members receive the commands. */
export const CROWD = "crowd";
/** Group with a long history. */
export const ARCHIVE = "archive";

const VOLLEY_BYTES = 32_768;
const MAX_VOLLEY = 50;
const MAX_UNSENT_BYTES = 262_144;

const counts = { connects: 0, volleys: 0, receivedBytes: 0 };

function payload(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

function frameOf(attack: Attack): Uint8Array {
  const ref = 7;
  const send = {
    ...({ kind: "send", ref, clientMsgNo: "", expireS: 0 } as const),
    ...{ streamNo: undefined, tagKey: undefined },
  };
  switch (attack) {
    case "commandack": {
      const inboxSeqs = Array.from({ length: 1000 }, (_, i) => 1_000_000 + i);
      return encodeOperation({ kind: attack, ref, inboxSeqs });
    }
    case "command":
      return encodeOperation({
        ...send,
        channel: { type: GROUP_CHANNEL, id: CROWD },
        header: { noPersist: false, redDot: false, syncOnce: true },
        payload: payload('{"type":99,"cmd":"x","param":{}}'),
      });
    case "history":
      return encodeOperation({
        ...{ kind: attack, ref, fromSeq: 1, toSeq: 0, limit: 500 },
        channel: { type: GROUP_CHANNEL, id: ARCHIVE },
        reverse: false,
      });
    case "presence": {
      const uids = Array.from({ length: 1000 }, (_, i) => `nobody-${i}`);
      return encodeOperation({ kind: attack, ref, uids });
    }
    case "send": {
      const items = Array.from({ length: 6000 }, (_, i) => `{"${i}":1}`);
      return encodeOperation({
        ...send,
        channel: { type: GROUP_CHANNEL, id: ARCHIVE },
        header: { noPersist: true, redDot: false, syncOnce: false },
        payload: payload(`{"type":1,"content":"","x":[${items.join(",")}]}`.slice(0, 65_000)),
      });
    }
    case "conversations":
      return encodeOperation({ kind: attack, ref, limit: 500, cursor: undefined });
  }
}

function volleyOf(attack: Attack): Buffer {
  const frame = webSocketFrame(frameOf(attack), OPCODES.binary);
  const count = Math.floor(VOLLEY_BYTES / frame.length);
  return Buffer.concat(Array<Buffer>(Math.min(MAX_VOLLEY, Math.max(1, count))).fill(frame));
}

function run(port: number, uid: string, attack: Attack): void {
  const volley = volleyOf(attack);
  const login = webSocketFrame(connectFrame({ uid, token: "t" }), OPCODES.binary);
  const attackOn = (socket: Socket) => {
    if (socket.destroyed) return;
    if (socket.writableLength < MAX_UNSENT_BYTES) {
      socket.write(volley);
      counts.volleys += 1;
    }
    setImmediate(attackOn, socket);
  };
  const open = () => {
    counts.connects += 1;
    const socket = connect({ host: "127.0.0.1", port, noDelay: true });
    let status: "upgrading" | "connecting" | "attacking" = "upgrading";
    socket.on("data", (data: Buffer) => {
      counts.receivedBytes += data.length;
      if (status === "upgrading") {
        status = "connecting";
        socket.write(login);
      } else if (status === "connecting") {
        status = "attacking"; // frames sent before the CONNACK would end the connection
        if (counts.volleys === 0) process.stdout.write("at work\n");
        attackOn(socket);
      }
    });
    socket.on("error", () => undefined); // a `close` event always follows
    socket.on("end", () => socket.destroy());
    socket.on("close", () => setImmediate(open));
    socket.write(upgradeRequest());
  };
  open();
}

if (process.argv[2] === "attack") {
  const [port, sessions, selected] = process.argv.slice(3);
  for (let i = 0; i < Number(sessions); i++) {
    const kinds = selected === "all" ? ALL : READS_AND_BYTES;
    const attack = ALL.find((kind) => kind === selected) ?? kinds[i % kinds.length];
    if (attack !== undefined) run(Number(port), `hostile-${i}`, attack);
  }
  process.stdin.resume();
  process.stdin.on("end", () => {
    process.stdout.write(`${JSON.stringify(counts)}\n`, () => process.exit());
  });
}
