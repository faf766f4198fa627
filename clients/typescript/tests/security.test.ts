/** TLS, client certificates and tokens, against a real sidecar. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import * as grpc from '@grpc/grpc-js';
import { semanticRecallEmbedder } from '../src/adapters/embedder.js';
import { recallMiddleware } from '../src/ai/middleware.js';
import { RecallClient, UnauthenticatedError, UnavailableError, user } from '../src/index.js';
import type { ClientOptions, TlsOptions } from '../src/index.js';
import { asks, generated } from './support/ai-calls.js';
import { ControlledSidecar } from './support/controlled-sidecar.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

const TOKEN = 'a-token-of-more-than-sixteen-characters';
const folder = mkdtempSync(join(tmpdir(), 'semanticrecall-tls-'));
const file = (name: string) => join(folder, name);
let sidecar: Sidecar;

function certificate(name: string): void {
  const subject = ['-subj', '/CN=recall.test', '-addext', 'subjectAltName=DNS:recall.test'];
  const files = ['-keyout', file(`${name}.key`), '-out', file(`${name}.crt`)];
  const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  execFileSync('openssl', ['req', '-x509', '-days', '2', ...kind, ...files, ...subject], {
    stdio: 'ignore',
  });
}

before(async () => {
  certificate('server');
  certificate('other');
  certificate('client');
  writeFileSync(file('tokens'), `${TOKEN}\n`);
  const tls = ['--tls-cert-file', file('server.crt'), '--tls-key-file', file('server.key')];
  sidecar = await startSidecar({
    tcp: true,
    args: [...tls, '--tokens-file', file('tokens')],
    clientOptions: { failOpen: false, connectTimeoutMs: 2_000 },
  });
});
after(async () => {
  await sidecar.stop();
  rmSync(folder, { recursive: true });
});

const serverName = 'recall.test';

test('with the right authority and token all calls work, streams too', async () => {
  for (const ca of [{ caFile: file('server.crt') }, { ca: readFileSync(file('server.crt')) }]) {
    const memory = sidecar.client({ token: TOKEN, tls: { ...ca, serverName } });
    await memory.index('ada', 't', [user('Rex is allergic to chicken', { id: 'm1' })]);
    const found = await memory.recall('ada', 'Rex');
    assert.equal(found.hits[0]?.message.id, 'm1');
    assert.equal((await memory.admin.stats()).messages, 1);
    await memory.close();
  }
});

test('a wrong token, or none, is refused, and that is no outage', async () => {
  for (const token of ['another-token-of-the-same-length-or-so', undefined]) {
    const memory = sidecar.client({
      token,
      tls: { caFile: file('server.crt'), serverName },
      failOpen: true,
    });
    await assert.rejects(memory.recall('ada', 'Rex'), (error) => {
      assert.ok(error instanceof UnauthenticatedError);
      assert.ok(token === undefined || !error.message.includes(token));
      return !error.retryable;
    });
    await assert.rejects(memory.index('ada', 't', [user('x')]), UnauthenticatedError);
  }
});

test('the middleware and the embedder take a token and TLS as the client does', async () => {
  const to = {
    address: sidecar.address,
    token: TOKEN,
    tls: { caFile: file('server.crt'), serverName },
  };
  const embedder = semanticRecallEmbedder(to);
  assert.equal((await embedder.doEmbed({ values: ['Rex'] })).embeddings.length, 1);
  await embedder.close();
  const middleware = recallMiddleware({ ...to, resourceId: 'eve', threadId: 't' });
  const params = await middleware.transformParams({ params: asks() });
  await middleware.wrapGenerate({ doGenerate: generated('Chicken.'), params });
  const { recalls, recallsFailed, messagesIndexed } = middleware.stats;
  assert.deepEqual([recalls, recallsFailed, messagesIndexed], [1, 0, 2]);
  await middleware.close();
});

test('whom nobody vouches for is not talked to', async () => {
  const wrong: ClientOptions[] = [
    { tls: { caFile: file('other.crt'), serverName } },
    // The certificate is for another name than the address.
    { tls: { caFile: file('server.crt') } },
    { tls: true },
    {},
  ];
  for (const options of wrong) {
    const memory = sidecar.client({ connectTimeoutMs: 500, ...options });
    await assert.rejects(memory.recall('ada', 'Rex'), { reason: 'NO_CONNECTION' });
  }
});

test('a server that wants certificates of clients takes the right one only', async () => {
  const [ca, cert, key] = ['server.crt', 'client.crt', 'client.key'].map((name) =>
    readFileSync(file(name)),
  );
  assert.ok(cert !== undefined && key !== undefined);
  const pair = {
    cert_chain: readFileSync(file('server.crt')),
    private_key: readFileSync(file('server.key')),
  };
  const strict = await ControlledSidecar.start(
    grpc.ServerCredentials.createSsl(cert, [pair], true),
  );
  const clientOf = (tls: TlsOptions) =>
    new RecallClient({
      address: strict.address,
      tls: { ca, serverName, ...tls },
      failOpen: false,
      connectTimeoutMs: 2_000,
    });
  try {
    const right: TlsOptions[] = [
      { cert, key },
      { certFile: file('client.crt'), keyFile: file('client.key') },
    ];
    for (const tls of right) {
      await using memory = clientOf(tls);
      assert.equal((await memory.recall('ada', 'Rex')).contextText, 'Rex');
      await memory.index('ada', 't', [user('x')]);
    }
    const wrong: TlsOptions[] = [{}, { certFile: file('other.crt'), keyFile: file('other.key') }];
    for (const tls of wrong) {
      await using memory = clientOf(tls);
      await assert.rejects(memory.index('ada', 't', [user('x')]), (error) => {
        assert.ok(error instanceof UnavailableError);
        assert.equal(error.reason, 'NO_CONNECTION');
        return error.message.includes('{ certFile, keyFile }');
      });
    }
    assert.deepEqual(strict.singleCalls, ['index', 'index']);
  } finally {
    strict.stop();
  }
});
