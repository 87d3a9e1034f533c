// Tests that the feed of a stream ends when its reader loses the permission to read: at the next
// check, or at once if a change of the reader's permission is published.

import { BrokerError } from "../../src/broker/errors.ts";
import { STREAM_CONTENT, STREAM_START } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { until } from "../transport/support.ts";
import { FeedReader } from "./feed-reader.ts";
import { startFeeds } from "./feed-world.ts";

t.test(
  "a stream feed to a viewer ends at the next permission check after the viewer leaves the channel, and no further events are sent",
  async (t) => {
    let isMember = true;
    const admit = async () => {
      if (!isMember) throw new BrokerError("not_in_channel");
      return undefined;
    };
    const { port, produce } = await startFeeds(t, { keepAliveMs: 15, admit });
    produce(STREAM_START, "");
    const path = "/stream/2/g/answer?uid=carol&token=t";
    const viewer = new FeedReader(t, port, { path });
    const backend = new FeedReader(t, port);
    await viewer.received(1);
    await backend.received(1);
    isMember = false;
    await until(() => viewer.isComplete);
    produce(STREAM_CONTENT, "secret");
    await backend.received(2);
    t.notMatch(viewer.text, "secret");
    const returning = new FeedReader(t, port, { path });
    await returning.client.has("not_in_channel");
    t.equal(returning.status, 404);
  },
);

t.test(
  "a viewer's permission to read is checked again at once when a removal from the channel is published",
  async (t) => {
    let isMember = true;
    const admit = async () => {
      if (!isMember) throw new BrokerError("not_in_channel");
      return undefined;
    };
    const { port, produce, notify } = await startFeeds(t, { admit });
    produce(STREAM_START, "");
    const path = "/stream/2/g/answer?uid=carol&token=t";
    const viewer = new FeedReader(t, port, { path });
    const backend = new FeedReader(t, port);
    await viewer.received(1);
    await backend.received(1);
    notify({ kind: "credential", uid: "carol" });
    produce(STREAM_CONTENT, "still");
    await viewer.received(2);
    isMember = false;
    notify({ kind: "removal", channelId: "g", uids: ["carol"] });
    produce(STREAM_CONTENT, "secret");
    await until(() => viewer.isComplete);
    await backend.received(3);
    t.notMatch(viewer.text, "secret");
  },
);

t.test("a feed to a manager ends at the next token check after the manager logs out", async (t) => {
  const { port, produce, api } = await startFeeds(t, {
    api: { requiresCredential: true },
    keepAliveMs: 15,
  });
  produce(STREAM_START, "");
  const authorization = await api.login();
  const manager = new FeedReader(t, port, { authorization });
  await manager.received(1);
  await until(() => manager.text.endsWith(":\n\n:\n\n"));
  t.notOk(manager.isComplete, "the feed stays open while the token is valid");
  await api.managers.logout(authorization.slice("Bearer ".length));
  await until(() => manager.isComplete);
  const returning = new FeedReader(t, port, { authorization });
  await returning.client.has("unauthorized");
  t.equal(returning.status, 401);
});
