// JSON-RPC 2.0 over a WebSocket, server side, in two forms: the extended form, which a client
// selects with `protocol` in connect, and a plain form for all other clients (view.ts). The gateway
// replies to each request once, and limits the number of open requests. The responses to a batch
// are collected and sent in lists (batch.ts).

import type { ErrorCode } from "../../broker/errors.ts";
import { fieldText } from "../../lib/json-field.ts";
import { withoutStack } from "../../lib/without-stack.ts";
import {
  type Admit,
  type Codec,
  FrameError,
  type Frames,
  type Greeting,
  largeFrameMessage,
  type Operation,
  type Protocol,
  type Push,
  type Ref,
  type Reply,
  type RequestLimits,
  type ResumePoint,
} from "../protocol.ts";
import { Batch } from "./batch.ts";
import { EXTENDED_VERSION, readResumePoints, wantsExtended } from "./decode.ts";
import {
  type Document,
  isBatch,
  itemsOf,
  MAX_BATCH_REQUESTS,
  parseDocument,
  splitDocuments,
} from "./documents.ts";
import { errorResponse, resultResponse } from "./encode.ts";
import { RPC_CODES, type RpcCode, rpcCodeOf } from "./errors.ts";
import { EXTENDED } from "./extended.ts";
import { GREETING_TOO_COMPLEX, MAX_GREETING_BYTES, scanFirstMessage } from "./first-message.ts";
import { isJsonObject, type JsonObject, Params } from "./params.ts";
import { idText, MAX_ID_LENGTH, readRequestName } from "./request-name.ts";
import type { ErrorNumber, Method, RequestFacts, View } from "./view.ts";

const SUBPROTOCOL = "jindou.jsonrpc.v1";

/**
 * Maximum number of values in a request or batch. A list of uids or seqs has at most 1000 values,
 * but a payload that is an object may have more.
 */
const MAX_VALUES = 20_000;
const TOO_MANY_VALUES = `A request or batch must have at most ${MAX_VALUES} values`;

const OPEN_OBJECT = 0x7b;
const BLANKS: readonly number[] = [0x20, 0x09, 0x0a, 0x0d];

interface Forms {
  /** Form for clients that send no `protocol` in connect. */
  readonly plain: View;
  readonly errorNumber: ErrorNumber;
}

export function createJsonRpcProtocol(limits: RequestLimits, forms: Forms): Protocol {
  return {
    name: SUBPROTOCOL,
    speaks(data, isText) {
      if (isText) return true; // no other protocol has text messages
      const first = data.subarray(0, MAX_GREETING_BYTES).find((byte) => !BLANKS.includes(byte));
      return first === OPEN_OBJECT;
    },
    open: () => new JsonRpcCodec(limits, forms),
  };
}

interface RequestContext {
  readonly id: string | undefined;
  readonly batch: Batch | undefined;
}

interface OpenRequest extends RequestFacts {
  /** JSON text of the id, or `undefined` if the request has no valid id or needs no response. */
  readonly id: string | undefined;
  readonly batch: Batch | undefined;
  readonly rpcCode: RpcCode | undefined;
}

class JsonRpcCodec implements Codec {
  readonly isPrivate = false;
  readonly splitsRequests = false;
  readonly #limits: RequestLimits;
  readonly #forms: Forms;
  readonly #openRequests = new Map<Ref, OpenRequest>();
  #lastRef = 0;
  #view: View | undefined;
  #version: number | undefined;

  constructor(limits: RequestLimits, forms: Forms) {
    this.#limits = limits;
    this.#forms = forms;
  }

  get format(): string {
    return this.#viewOrPlain.format;
  }

  get acknowledges(): boolean {
    return this.#viewOrPlain.acknowledges;
  }

  get #viewOrPlain(): View {
    return this.#view ?? this.#forms.plain;
  }

  get version(): number {
    return this.#version ?? EXTENDED_VERSION;
  }

  *decode(
    data: Uint8Array,
    _isText: boolean,
    admit: Admit = () => true,
  ): Generator<Operation | FrameError, void> {
    for (const { bytes, values } of splitDocuments(data)) {
      if (isBatch(bytes)) {
        yield* this.#decodeBatch(bytes, values, admit);
        continue;
      }
      const isAdmitted = admit(bytes.length, values);
      if (!isAdmitted || values > MAX_VALUES) {
        const refusal = this.#refuseUnread(bytes, isAdmitted ? "too_large" : "rate_limited");
        if (refusal !== undefined) yield refusal;
        continue;
      }
      const document = parseDocument(bytes);
      const request = this.#read(document);
      if (request !== undefined) yield request;
      if (document === undefined) return;
    }
  }

  *#decodeBatch(
    bytes: Uint8Array,
    values: number,
    admit: Admit,
  ): Generator<Operation | FrameError, void> {
    const items = itemsOf(bytes);
    // All values are charged to the first request, because the whole batch is parsed at once.
    const isAdmitted = admit(items[0]?.length ?? 0, values);
    if (isAdmitted && values > MAX_VALUES)
      return yield this.#malformed(RPC_CODES.invalidRequest, TOO_MANY_VALUES);
    if (isAdmitted && parseDocument(bytes) === undefined) return yield this.#notJson();
    if (items.length === 0 || items.length > MAX_BATCH_REQUESTS) {
      const problem = `A batch must have 1 to ${MAX_BATCH_REQUESTS} requests`;
      return yield this.#malformed(RPC_CODES.invalidRequest, problem);
    }
    const batch = new Batch();
    const requests = items.map((item) =>
      isAdmitted
        ? this.#read(parseDocument(item), batch)
        : this.#refuseUnread(item, "rate_limited", batch),
    );
    for (const [at, request] of requests.entries()) {
      if (at === 0 || !isAdmitted || admit(items[at]?.length ?? 0, 0)) {
        if (request !== undefined) yield request;
      } else if (request !== undefined && this.#openRequests.has(request.ref))
        yield withoutStack(() => new FrameError("rate_limited", request.ref, ""));
    }
  }

  decodeConnect(data: Uint8Array): Greeting {
    const message = scanFirstMessage(data);
    if (message === undefined)
      throw this.#malformed(RPC_CODES.invalidRequest, GREETING_TOO_COMPLEX);
    const request = this.#read(message.document);
    if (request instanceof FrameError) throw request;
    if (request?.kind !== "connect")
      throw new FrameError(
        "not_connected",
        request?.ref ?? 0,
        "The first request must have the method connect",
      );
    const { resume, ...connect } = request;
    const { resumeText } = message;
    const isSkipped = resumeText !== undefined && this.#view === EXTENDED;
    const finishDecoding = () => (isSkipped ? this.#readResume(resumeText, connect.ref) : resume);
    return { ...connect, finishDecoding };
  }

  #readResume(text: Uint8Array, ref: Ref): readonly ResumePoint[] {
    const document = parseDocument(text);
    if (document === undefined)
      throw new FrameError("bad_request", ref, "resume is not valid JSON in UTF-8");
    const params = new Params({ resume: document.value }, ref);
    return readResumePoints(params, this.#limits);
  }

  /**
   * Returns the refusal of a request that is not parsed. Returns `undefined` if the request has no
   * valid id.
   */
  #refuseUnread(
    bytes: Uint8Array,
    code: "rate_limited" | "too_large",
    batch?: Batch,
  ): FrameError | undefined {
    const request = readRequestName(bytes);
    if (request.id === undefined) return undefined;
    const message = code === "too_large" ? TOO_MANY_VALUES : "";
    const ref = this.#register({ ...request, batch });
    return withoutStack(() => new FrameError(code, ref, message));
  }

  /**
   * Returns the refusal of a frame above the size limit. The refusal contains the id of the frame's
   * first request.
   */
  refuseLarge(data: Uint8Array, maxFrameBytes: number): FrameError {
    const ref = this.#register(readRequestName(data));
    return new FrameError("too_large", ref, largeFrameMessage(maxFrameBytes));
  }

  encodeReply(reply: Reply): Frames {
    const request = this.#openRequests.get(reply.ref);
    this.#openRequests.delete(reply.ref);
    const response = this.#responseTo(reply, request);
    return request?.batch === undefined ? (response ?? []) : request.batch.answer(response);
  }

  #responseTo(reply: Reply, request: OpenRequest | undefined): string | undefined {
    const view = this.#viewOrPlain;
    if (reply.kind === "error" && !this.#isResult(reply.code, request)) {
      const id = request?.id ?? (this.#view ?? EXTENDED).unknownId;
      return errorResponse(id, reply, request?.rpcCode ?? this.#numberOf(reply.code));
    }
    if (request?.id === undefined) return undefined;
    const result = view.result(reply, request);
    return result === undefined ? undefined : resultResponse(request.id, result);
  }

  encodePush(push: Push): Frames {
    return this.#viewOrPlain.encode(push);
  }

  #isResult(code: ErrorCode, request: OpenRequest | undefined): boolean {
    return request !== undefined && this.#view?.isResult(code, request.method) === true;
  }

  #numberOf(code: ErrorCode): number {
    return rpcCodeOf(code) ?? this.#forms.errorNumber(code);
  }

  #register(request: Partial<OpenRequest>): Ref {
    this.#lastRef += 1;
    this.#openRequests.set(this.#lastRef, {
      id: undefined,
      method: "",
      batch: undefined,
      rpcCode: undefined,
      remembered: undefined,
      ...request,
    });
    request.batch?.expect();
    return this.#lastRef;
  }

  #malformed(
    rpcCode: RpcCode,
    message: string,
    { id, batch }: Partial<RequestContext> = {},
  ): FrameError {
    return new FrameError("malformed_frame", this.#register({ id, batch, rpcCode }), message);
  }

  #notJson(): FrameError {
    return this.#malformed(RPC_CODES.parseError, "The message is not valid JSON in UTF-8");
  }

  #read(document: Document | undefined, batch?: Batch): Operation | FrameError | undefined {
    if (document === undefined) return this.#notJson();
    const { value, text } = document;
    if (isJsonObject(value)) return this.#readRequest(value, text, batch);
    const problem = "A request must be a JSON object";
    return this.#malformed(RPC_CODES.invalidRequest, problem, { batch });
  }

  #readRequest(
    request: JsonObject,
    text: string,
    batch: Batch | undefined,
  ): Operation | FrameError | undefined {
    const { jsonrpc, method, id: rawId, params } = request;
    const id = idText(request.id, () => fieldText(text, "id")?.text);
    const context = { id, batch };
    const invalid = (problem: string) =>
      this.#malformed(RPC_CODES.invalidRequest, problem, context);
    if (!isAbsent(jsonrpc) && jsonrpc !== "2.0") return invalid('jsonrpc must be "2.0"');
    if (!isAbsent(rawId) && id === undefined)
      return invalid(`id must be a number, or a string of 1 to ${MAX_ID_LENGTH} characters`);
    if (typeof method !== "string") return invalid("method must be a string");
    const handler = (this.#view ?? EXTENDED).methods.get(method);
    if (handler === undefined)
      return this.#malformed(
        RPC_CODES.methodNotFound,
        EXTENDED.methods.has(method)
          ? `The method exists only in the extended protocol: send "protocol": ${EXTENDED_VERSION} in connect`
          : "The method does not exist",
        context,
      );
    if (id === undefined && !handler.isNotification) return invalid("The request must have an id");
    const fields = isAbsent(params) ? {} : params;
    if (!isJsonObject(fields))
      return this.#malformed(RPC_CODES.invalidParams, "params must be an object", context);
    return this.#readParams(
      new Params(fields, this.#lastRef + 1, text),
      { ...context, method },
      handler,
    );
  }

  #readParams(
    params: Params,
    context: RequestContext & Pick<OpenRequest, "method">,
    handler: Method,
  ): Operation | FrameError | undefined {
    const { ref } = params;
    try {
      const { method } = context;
      if (method === "connect") this.#view ??= wantsExtended(params) ? EXTENDED : this.#forms.plain;
      else if (this.#view === undefined) throw params.refusal("not_connected", "");
      const view = this.#viewOrPlain;
      const { read } = view.methods.get(method) ?? handler;
      const operation = read({ params, ref, limits: this.#limits });
      if (operation?.kind === "connect") this.#version ??= operation.version;
      if (operation?.ref === ref)
        this.#register({ ...context, remembered: view.remember(operation, params) });
      return operation;
    } catch (error) {
      if (!(error instanceof FrameError)) throw error;
      this.#register(context);
      return error;
    }
  }
}

/** Returns true for null too, because serializers write null for a field that is not set. */
function isAbsent(value: unknown): boolean {
  return value === undefined || value === null;
}
