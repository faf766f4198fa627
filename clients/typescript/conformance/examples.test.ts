/**
 * The examples of Mastra's own documentation of SemanticRecall, run as they are published: once as
 * they are, once with the import of SemanticRecall changed and nothing else. And the package as its
 * users import it: by its name, built.
 */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, suite, test } from 'node:test';

import { Agent } from '@mastra/core/agent';
import { MessageList } from '@mastra/core/agent/message-list';
import { RequestContext } from '@mastra/core/request-context';
import type { Processor } from '@mastra/core/processors';
import { LibSQLStore, LibSQLVector } from '@mastra/libsql';
import { Memory } from '@mastra/memory';

import { RecallClient } from '../src/index.js';
import { startSidecar, type Sidecar } from '../tests/support/sidecar.js';
import { ScriptedModel } from './support/language-model.js';
import { user } from './support/messages.js';
import { WordEmbedder } from './support/word-embedder.js';

const THEIRS = '@mastra/core/processors';
const OURS = '@semanticrecall/client/mastra';
// From build/conformance, where this runs.
const PACKAGE = new URL('../../', import.meta.url);
const PAGE = new URL(
  'node_modules/@mastra/core/dist/docs/references/reference-processors-semantic-recall-processor.md',
  PACKAGE,
);
const STAND_INS = new URL('support/stand-ins.js', import.meta.url).href;
const GENERATED = new URL('examples/', import.meta.url);
const DEADLINE_MS = 20_000;
const FACT = 'The lamp of the lighthouse is amber';

/** What an example exports. */
interface Example {
  readonly processor?: Processor;
  readonly agent?: Agent;
}

/** The package as its users get it; its types are those of the sources it is built from. */
async function ourPackage(): Promise<typeof import('../src/mastra/index.js')> {
  const name: string = OURS;
  return import(name) as Promise<typeof import('../src/mastra/index.js')>;
}

/** The blocks of the page that make a SemanticRecall. */
async function examples(): Promise<string[]> {
  const page = await readFile(PAGE, 'utf8');
  const blocks = [...page.matchAll(/```typescript\n([\s\S]*?)```/g)].map((match) => match[1] ?? '');
  return blocks.filter((block) => block.includes('new SemanticRecall('));
}

/** The text with SemanticRecall imported from our package, and the rest from where it was. */
function withOurImport(source: string): string {
  const changed = source.replace(
    /import \{ ([^}]*) \} from '@mastra\/core\/processors'/,
    (_, names: string) => {
      const rest = names.split(', ').filter((name) => name !== 'SemanticRecall');
      const others = rest.length === 0 ? '' : `; import { ${rest.join(', ')} } from '${THEIRS}'`;
      return `import { SemanticRecall } from '${OURS}'${others}`;
    },
  );
  assert.notEqual(changed, source, 'the example imports SemanticRecall');
  return changed;
}

/** Runs an example, what needs a network replaced; `names` are what it leaves to its reader. */
async function run(name: string, source: string, names: readonly string[]): Promise<Example> {
  const text = source
    .replaceAll("'@ai-sdk/openai'", `'${STAND_INS}'`)
    .replaceAll("'@mastra/pg'", `'${STAND_INS}'`);
  const free = names.length === 0 ? '' : `import { ${names.join(', ')} } from '${STAND_INS}';`;
  const exported = source.includes('export ') ? '' : 'export { processor };';
  await mkdir(GENERATED, { recursive: true });
  const file = new URL(`${name}.mjs`, GENERATED);
  await writeFile(file, [free, text, exported].join('\n'));
  const module: unknown = await import(file.href);
  assert.ok(typeof module === 'object' && module !== null);
  return module;
}

function contextOf(threadId: string, resourceId: string): RequestContext {
  const context = new RequestContext();
  context.set('MastraMemory', { thread: { id: threadId, resourceId }, resourceId });
  return context;
}

const USAGE = { inputTokens: 1, outputTokens: 1, totalTokens: 2 };

function hookArgs(messageList: MessageList, requestContext: RequestContext) {
  return {
    messages: messageList.get.all.db(),
    messageList,
    requestContext,
    abort: (): never => {
      throw new Error('aborted');
    },
    retryCount: 0,
    state: {},
  };
}

function systemTexts(prompt: readonly { role: string; content: unknown }[]): string {
  return prompt
    .filter((message) => message.role === 'system')
    .map((message) => String(message.content))
    .join('\n');
}

suite('examples of the documentation', () => {
  let sidecar: Sidecar;
  let client: RecallClient;
  let folder: string;

  before(async () => {
    sidecar = await startSidecar();
    client = sidecar.client();
    folder = await mkdtemp(join(tmpdir(), 'semanticrecall-examples-'));
    process.env['SEMANTICRECALL_ADDRESS'] = sidecar.address;
    process.env['DATABASE_URL'] = `file:${join(folder, 'rows.db')}`;
  });
  after(async () => {
    await sidecar.stop();
    await rm(folder, { recursive: true, force: true });
  });

  /** Returns when everything that was shown to the sidecar can be found by its meaning. */
  async function everythingEmbedded(): Promise<void> {
    const endMs = performance.now() + DEADLINE_MS;
    while ((await client.admin.stats()).pending > 0) {
      assert.ok(performance.now() < endMs, 'messages are embedded in time');
    }
  }

  test('the built package is of these sources: else `npm run build`', async () => {
    const [dist, built] = await Promise.all(
      ['dist/mastra/processor.js', 'build/src/mastra/processor.js'].map((path) =>
        readFile(new URL(path, PACKAGE), 'utf8'),
      ),
    );
    assert.equal(dist?.replace(/\n?\/\/# sourceMappingURL=.*\n?$/, ''), built?.trimEnd());
  });

  test('the page has two examples', async () => {
    assert.equal((await examples()).length, 2);
  });

  for (const whose of ['Mastra’s', 'our'] as const) {
    test(`usage example, ${whose} import`, async () => {
      const [published = ''] = await examples();
      const source = whose === 'our' ? withOurImport(published) : published;
      const { memoryStorage } = await import('./support/stand-ins.js');
      await memoryStorage.init();
      const name = whose === 'our' ? 'usage-ours' : 'usage-theirs';
      const { processor } = await run(name, source, ['memoryStorage', 'vectorStore']);
      const resourceId = `reader-of-${name}`;
      const message = user(`${name}-1`, FACT, { threadId: 'past', resourceId });
      const at = new Date('2024-03-01T00:00:00Z');
      await memoryStorage.saveThread({
        thread: { id: 'past', resourceId, title: '', createdAt: at, updatedAt: at },
      });
      await memoryStorage.saveMessages({ messages: [message] });
      const said = new MessageList({ threadId: 'past', resourceId }).add(message, 'input');
      await processor?.processOutputResult?.({
        ...hookArgs(said, contextOf('past', resourceId)),
        result: { text: '', usage: USAGE, finishReason: 'stop', steps: [] },
      });
      const asked = new MessageList({ threadId: 'here', resourceId }).add(
        user(`${name}-2`, 'Which lamp has the lighthouse?', { threadId: 'here', resourceId }),
        'input',
      );
      await processor?.processInput?.({
        ...hookArgs(asked, contextOf('here', resourceId)),
        systemMessages: [],
      });
      const [block, ...others] = asked.getSystemMessages('memory').map((one) => one.content);
      assert.equal(others.length, 0);
      assert.equal(typeof block === 'string' && block.includes(FACT), true);
    });

    test(`extended usage example, ${whose} import`, async () => {
      const [, published = ''] = await examples();
      const source = whose === 'our' ? withOurImport(published) : published;
      const name = whose === 'our' ? 'extended-ours' : 'extended-theirs';
      const { openedStorages } = await import('./support/stand-ins.js');
      const { agent } = await run(name, source, []);
      await openedStorages.at(-1)?.init();
      const model = new ScriptedModel();
      agent?.__updateModel({ model: model.model });
      // The page's agent has no memory, and without one no processor knows whose thread it is.
      const rows = new LibSQLStore({ id: 'rows', url: process.env['DATABASE_URL'] ?? '' });
      agent?.__setMemory(new Memory({ storage: rows }));
      const resource = `reader-of-${name}`;
      await agent?.generate(FACT, { memory: { thread: `${name}-past`, resource } });
      await everythingEmbedded();
      await agent?.generate(`${FACT}?`, { memory: { thread: `${name}-here`, resource } });
      const [first, second] = model.prompts.map(systemTexts);
      assert.equal(first?.includes(FACT), false);
      assert.equal(second?.includes(FACT), true);
      await rows.close();
    });
  }

  test('beside a Memory that has semantic recall on: nothing but the address is needed', async () => {
    const { SemanticRecall } = await ourPackage();
    const recall = new SemanticRecall();
    const embedder = new WordEmbedder();
    const storage = new LibSQLStore({ id: 'rows', url: `file:${join(folder, 'memory.db')}` });
    const vector = new LibSQLVector({ id: 'vectors', url: `file:${join(folder, 'vectors.db')}` });
    const model = new ScriptedModel();
    const agent = new Agent({
      id: 'support-agent',
      name: 'SupportAgent',
      instructions: 'You are a helpful support agent.',
      model: model.model,
      memory: new Memory({ storage, vector, embedder, options: { semanticRecall: true } }),
      inputProcessors: [recall],
      outputProcessors: [recall],
    });
    await agent.generate(FACT, { memory: { thread: 'past', resource: 'reader' } });
    await agent.generate('Which lamp?', { memory: { thread: 'here', resource: 'reader' } });
    assert.equal(systemTexts(model.prompts[1] ?? []).includes(FACT), true);
    assert.deepEqual(embedder.calls, []);
    assert.deepEqual(await vector.listIndexes(), []);
    await storage.close();
    await vector.close();
  });
});
