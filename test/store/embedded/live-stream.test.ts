// The size limit of a stream in memory: a viewer is never sent more bytes than the limit allows,
// for all kinds of events.

import { STREAM_CONTENT, STREAM_START } from "../../../src/broker/model.ts";
import type { StreamDraft } from "../../../src/broker/ports.ts";
import { createNativeProtocol } from "../../../src/protocol/native/native.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { eventOf, KEY, TOOL } from "../../contract/store-stream-fixture.ts";
import { t } from "../../support/suite.ts";
import { volume } from "../../support/volume.ts";
import { LIMITS } from "../../wire/native-codec.ts";
import { ALL, crashedCopy, openStore, testFolder } from "./folder.ts";

/**
 * Returns the number of bytes that are sent to a viewer who joins or reconnects: the size of the
 * stream's own frame or of the frame with the channel's message, whichever is larger.
 */
async function sentBytes(store: EmbeddedStore): Promise<number> {
  const codec = createNativeProtocol(LIMITS).open();
  const snapshot = await store.stream(KEY, "s");
  const { messages } = await store.readMessages(KEY, ALL);
  const [message] = messages;
  if (snapshot === undefined || message === undefined) throw new Error("the stream is missing");
  const { channel } = message;
  const frames = [
    codec.encodePush({ kind: "stream", channel, snapshot }),
    codec.encodePush({ kind: "message", channel, message }),
  ];
  return Math.max(...frames.map(({ length }) => length));
}

t.test(
  "a viewer is sent at most maxStreamBytes plus 300 bytes of a stream, for all kinds of events",
  async (t) => {
    const maxStreamBytes = volume(20_000, undefined, 5000);
    const long = (at: number) => `${"呼".repeat(115)}${at}`;
    const kinds: Record<string, (at: number) => Partial<StreamDraft>> = {
      "tool calls": () => ({ type: TOOL, data: "tok" }),
      "tool calls without data": () => ({ type: TOOL, data: "" }),
      "custom events": (at) => ({ type: long(at), data: "" }),
      "long ids": (at) => ({ type: TOOL, data: "", eventId: long(at) }),
      "control characters": () => ({ data: "\u0001".repeat(20) }),
      quotes: () => ({ data: '"\\\n'.repeat(20) }),
      "characters beyond 16 bits": () => ({ data: "😀" }),
      "plain text": () => ({ data: "plain text ".repeat(5) }),
    };
    for (const [kind, eventAt] of Object.entries(kinds)) {
      const path = testFolder(t);
      const store = await openStore(t, path, { maxStreamBytes });
      await store.streamEvent(eventOf(STREAM_START));
      let count = 0;
      const fill = async (): Promise<void> => {
        for (; count < 20_000; count++)
          await store.streamEvent(eventOf(STREAM_CONTENT, "", eventAt(count)));
      };
      t.equal(await codeOf(fill()), "too_large", kind);
      const bytes = await sentBytes(store);
      t.ok(bytes <= maxStreamBytes + 300, `${kind}: the viewer is sent ${bytes} bytes`);
      t.ok(bytes >= maxStreamBytes / 2, `${kind}: at least half of the limit can be used`);
      const reopened = await openStore(t, await crashedCopy(t, path), {
        maxStreamBytes,
      });
      const next = eventOf(STREAM_CONTENT, "", eventAt(count));
      t.equal(
        await codeOf(reopened.streamEvent(next)),
        "too_large",
        `${kind}: the limit is the same after a restart`,
      );
    }
  },
);
