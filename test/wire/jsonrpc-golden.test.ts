// Messages captured from real WuKongIM servers and their client (jsonrpc-goldens.json): every one
// of a client decodes, every one of a server is encoded again byte for byte, except for what is a
// defect there or has another form here; each exception is a line of `ours`.

import { readFileSync } from "node:fs";
import {
  type ChannelEvent,
  type ChannelRef,
  type Message,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import { createJsonRpcProtocol } from "../../src/protocol/jsonrpc/jsonrpc.ts";
import { type Codec, FrameError, type Push } from "../../src/protocol/protocol.ts";
import type { Json } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import { LIMITS } from "./native-codec.ts";

interface Golden {
  readonly dir: string;
  readonly text: string;
}
interface Session {
  readonly name: string;
  readonly frames: readonly Golden[];
}

const { sessions } = JSON.parse(
  readFileSync(new URL("jsonrpc-goldens.json", import.meta.url), "utf8"),
) as { sessions: readonly Session[] };

const protocol = createJsonRpcProtocol(LIMITS);
const bytesOf = (text: string) => new TextEncoder().encode(text);

/** By their text: what is refused here; the rest of what clients sent must be taken. */
const REFUSED = [
  /"id":\d/, // no string
  /"method":"nope"/,
  /"method":"subscribe"/,
  /"payload":"!!!"/,
  /"channel_id"/, // a missing channelId, here as there
  /"jsonrpc":"1.0"/,
  /^\{nope/,
  /"method":"send","id":"x1"\}/, // no params
  /"uid":"a@b"/,
  /"method":"connect","params":\{[^}]*\}\}$/, // no id
  /^\{"method":"ping","params":\{\},"id":"x"\}$/, // before connect
];

t.test("every message of a client decodes, or is refused", async (t) => {
  let count = 0;
  for (const { name, frames } of sessions) {
    const codec = protocol.open();
    for (const { text } of frames.filter(({ dir }) => dir === "c>s")) {
      t.ok(protocol.speaks(bytesOf(text), true), "speaks");
      const requests = codec.decode(bytesOf(text), true);
      const isRefused = requests.some((one) => one instanceof FrameError);
      const expected = REFUSED.some((form) => form.test(text));
      t.equal(isRefused, expected, `${name}: ${text}`);
      count += 1;
    }
  }
  t.ok(count > 70, `${count} messages`);
});

t.test("every message of a server is encoded again", async (t) => {
  let count = 0;
  for (const { name, frames } of sessions) {
    const codec = protocol.open();
    const asked = new Map<string, Json>();
    const refs = new Map<string, number>();
    for (const { dir, text } of frames) {
      if (dir === "closed") continue;
      if (dir === "c>s") {
        const ids = idsIn(text);
        codec
          .decode(bytesOf(text), true)
          .filter(({ ref }) => ref > 0)
          .forEach(({ ref }, i) => {
            refs.set(ids[i] ?? "", ref);
          });
        if (text.includes('"connect"')) asked.set(ids[0] ?? "", parse(text));
        continue;
      }
      const frame = parse(text);
      if (frame.error !== undefined) continue; // code 0 and a sentence of Go: errors have codes here
      const found = encoded(codec, frame, refs, asked);
      t.equal(found, ours(text), `${name}`);
      count += 1;
    }
  }
  t.ok(count > 60, `${count} messages`);
});

/** Undefined: it is no JSON. */
function parse(text: string): Json {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function idsIn(text: string): readonly string[] {
  return [...text.matchAll(/"id":"([^"]+)"/g)].map(([, id = ""]) => id);
}

/** What the broker would have said, through the codec. */
function encoded(
  codec: Codec,
  { id, result = {}, method, params }: Json,
  refs: ReadonlyMap<string, number>,
  asked: ReadonlyMap<string, Json>,
): unknown {
  if (method !== undefined) return codec.encodePush(pushOf(method, params));
  const ref = refs.get(id) ?? 0;
  if (result.serverVersion !== undefined) {
    const clientTimestamp = asked.get(id)?.params?.clientTimestamp ?? 0;
    return codec.encodeReply({
      kind: "connack",
      ref,
      version: codec.version,
      sessionId: "",
      nodeId: String(result.nodeId),
      serverTimeMs: clientTimestamp + (result.timeDiff ?? 0),
      limits: {
        maxFrameBytes: 0,
        maxPayloadBytes: 0,
        idleTimeoutS: 0,
        maxFramesPerSecond: 0,
      },
      resume: [],
    });
  }
  if (result.reasonCode === undefined)
    return codec.encodeReply({ kind: "pong", ref, serverTimeMs: 1 });
  if (result.reasonCode !== 1)
    return codec.encodeReply({
      ...{ kind: "error", ref, code: "not_subscriber" },
      ...{ message: "", retryAfterMs: 0 },
    });
  return codec.encodeReply({
    ...{ kind: "sendack", ref, clientMsgNo: "" },
    messageId: idOf(result.messageId),
    messageSeq: result.messageSeq,
  });
}

function pushOf(method: string, params: Json): Push {
  if (method === "disconnect") return { kind: "disconnect", reason: "kicked" };
  const channel: ChannelRef = {
    id: params.channelId ?? "ben",
    type: params.channelType ?? 1,
  };
  if (method === "event") return { kind: "event", channel, event: eventOf(params) };
  const message = messageOf(params, channel);
  return params.header?.syncOnce
    ? { kind: "command", channel, inboxSeq: params.messageSeq, message }
    : { kind: "message", channel, message };
}

function eventOf({ id, type, timestamp, data }: Json): ChannelEvent {
  return {
    ...{ key: "1:ann@ben", channel: { id: "ben", type: 1 }, fromUid: "ann" },
    clientMsgNo: "st-1",
    eventId: id,
    ...{ type, data, timestampMs: timestamp, stream: undefined },
  };
}

function messageOf(params: Json, channel: ChannelRef): Message {
  const { header = {}, setting = {}, topic = "" } = params;
  const bits = setting.receipt ? 0x80 : 0;
  return {
    messageId: idOf(params.messageId),
    messageSeq: params.messageSeq,
    ...{ key: "1:ann@ben", channel },
    fromUid: params.fromUid || SYSTEM_UID,
    clientMsgNo: params.clientMsgNo,
    timestampMs: params.timestamp * 1000,
    header: {
      noPersist: header.noPersist ?? false,
      redDot: header.redDot ?? false,
    },
    expireS: params.expire ?? 0,
    ...{ streamNo: undefined, tagKey: undefined },
    passthrough: bits || topic ? { setting: bits, topic } : undefined,
    payload: new Uint8Array(Buffer.from(params.payload, "base64")),
    stream: setting.stream && {
      ...{ key: "1:ann@ben", channel, fromUid: "ann", clientMsgNo: "st-1" },
      ...{ messageId: 1, messageSeq: 1, state: "active", text: "" },
      ...{ nextIndex: 0, startData: "", endData: undefined, notes: [] },
    },
  };
}

/** WuKongIM's ids have 64 bits, ours 53. */
function idOf(messageId: string): number {
  return Number(messageId.slice(0, 15));
}

/** The text as it is here. */
function ours(text: string): string {
  return text
    .replace(/"messageId":"(\d{15})\d*"/, '"messageId":"$1"') // see idOf
    .replace(/("method":"recv","params":\{)(?!"header")/, '$1"header":{},') // the Python client needs it
    .replace(/^(\{"jsonrpc":"2.0","id":"[^"]+")\}$/, '$1,"result":{}}') // a response has a result
    .replace(/"messageId":"\d+"(,"messageSeq":0,"reasonCode":3)/, '"messageId":"0"$1') // what is refused has no id
    .replace(
      /("reasonCode":12,"reason":)"[^"]+"/,
      '$1"Another main device logged in, or a backend ended the session"',
    ) // the text is free
    .replace(/"id":"[^"]*"(,"type":"___Text)/, '"id":"st-1"$1'); // the stream's name, for the start and the end as well
}
