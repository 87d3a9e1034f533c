// Holds replies to the OpenAPI document and to the headers every reply has. State: the document of
// an open control plane of each dialect, read once.

import assert from "node:assert/strict";
import type { TSchema } from "typebox";
import { Compile } from "typebox/compile";
import type { HttpRequest } from "../../src/transport/types.ts";
import type { Answer } from "./harness.ts";

// biome-ignore lint/suspicious/noExplicitAny: a parsed JSON document
export type OpenApi = any;

/** By dialect. */
const open = new Map<string, Promise<OpenApi>>();
const fits = new Map<string, (value: unknown) => boolean>();

/** Status and body are as the document says. `read` gets the document, once. */
export async function holdToDocument(
  request: HttpRequest,
  answer: Answer,
  dialect: string,
  read: () => Promise<OpenApi>,
): Promise<void> {
  const reading = open.get(dialect) ?? read();
  open.set(dialect, reading);
  const document = await reading;
  const method = request.method.toLowerCase();
  const operation = operationOf(document, request.path)?.[method];
  if (operation === undefined) return; // an unknown path or method
  const { status, json } = answer;
  const documented = operation.responses[status];
  const where = `${request.method} ${request.path} ${status} ${json?.code ?? ""}`;
  assert.ok(documented, `${where} is documented`);
  if (status >= 400 && dialect === "jindou")
    assert.ok(documented.description.split(", ").includes(json.code), where);
  if (json === undefined) return;
  const { schema } = documented.content["application/json"];
  const resolved = dereferenced(schema, document);
  const key = JSON.stringify(resolved);
  const fit = fits.get(key) ?? compile(resolved);
  fits.set(key, fit);
  assert.ok(fit(json), `${where} fits its schema`);
}

/** The schema with what its references name in their place. */
export function dereferenced(schema: OpenApi, document: OpenApi): OpenApi {
  if (typeof schema !== "object" || schema === null) return schema;
  if (Array.isArray(schema)) return schema.map((item) => dereferenced(item, document));
  const { $ref } = schema;
  if (typeof $ref === "string") {
    const name = $ref.replace("#/components/schemas/", "");
    return dereferenced(document.components.schemas[name], document);
  }
  return Object.fromEntries(
    Object.entries(schema).map(([key, value]) => [key, dereferenced(value, document)]),
  );
}

function operationOf({ paths }: OpenApi, path: string): OpenApi {
  const template = Object.keys(paths).find((one) =>
    new RegExp(`^${one.replaceAll(/\{\w+\}/g, "[^/]+")}$`).test(path),
  );
  return template === undefined ? undefined : paths[template];
}

function compile(schema: TSchema): (value: unknown) => boolean {
  const validator = Compile(schema);
  return (value) => validator.Check(value);
}

export function holdToHeaders({ status, headers, json }: Answer, dialect: string): void {
  assert.equal(headers["cache-control"], "no-store");
  assert.equal(headers["x-content-type-options"], "nosniff");
  if (status < 300) return;
  if (dialect === "jindou") {
    assert.match(json.error, /^\S.+/);
    assert.match(json.code, /^[a-z_]+$/);
    assert.equal(json.status, status);
  } else if (status !== 401) {
    assert.match(json.msg, /^\S.+/);
    assert.deepEqual(Object.keys(json), ["msg", "status"]);
  }
  assert.equal(headers["www-authenticate"], status === 401 ? "Bearer" : undefined);
  const mayRetry = status === 429 || status === 503;
  assert.equal(headers["retry-after"] !== undefined, mayRetry);
}
